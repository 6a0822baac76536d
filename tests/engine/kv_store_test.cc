#include "engine/kv/kv_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "kernels/paged_kv.h"
#include "tests/engine/fake_serving.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

std::vector<PageCopy> Extend(KvStore& store, Lease& lease, int64_t written, int64_t end) {
  const int64_t needed = store.PagesNeeded(lease, written, end);
  const int64_t before = store.free_pages();
  std::vector<PageCopy> copies;
  store.Extend(lease, written, end, &copies);
  EXPECT_EQ(before - store.free_pages(), needed) << "PagesNeeded(" << written << ", " << end << ")";
  return copies;
}

TEST(LeaseTest, PagesInSightHoldEveryWindowWhereverItBegins) {
  const Paging paging(4);
  for (int32_t window = 1; window < 10; ++window) {
    const KvLayout layout = TestLayout({window}, paging.tokens());
    int64_t most = 0;
    for (int64_t end = window; end < 40; ++end)
      most = std::max(most, paging.PagesFor(end) - paging.PageOf(end - window));
    EXPECT_GE(PagesInSight(layout, 0, 100, 1), most) << window;
  }
}

TEST(KvStoreTest, GivesEveryPageOnceAndCountsThem) {
  KvStore store(TestLayout({0}, 4), 5, PrefixCache::kOff);
  Lease lease = store.NewLease();
  Extend(store, lease, 0, 20);
  EXPECT_EQ(std::set<PageId>(lease.tables[0].pages.begin(), lease.tables[0].pages.end()),
            (std::set<PageId>{0, 1, 2, 3, 4}));
  EXPECT_EQ(store.available(), 0);
  EXPECT_EQ(store.held_pages(), 5);
  store.CheckAccounting();
  store.Release(lease);
  EXPECT_EQ(store.available(), 5);
  EXPECT_EQ(store.held_pages(), 0);
  store.CheckAccounting();
}

TEST(KvStoreTest, APageIsFreeOnlyWhenItsLastLeaseLetsGo) {
  KvStore store(TestLayout({0}, 4), 2, PrefixCache::kOff);
  Lease first = store.NewLease();
  Extend(store, first, 0, 4);
  Lease second = store.Fork(first, 4);
  Lease third = store.Fork(first, 4);
  const PageId page = first.tables[0].pages[0];
  EXPECT_EQ(store.references(page), 3);
  store.Release(first);
  store.Release(second);
  EXPECT_EQ(store.free_pages(), 1);
  store.Release(third);
  EXPECT_EQ(store.free_pages(), 2);
  EXPECT_EQ(store.references(page), 0);
}

// A sequence begins again with it: whom it is for, and what it may expect.
TEST(KvStoreTest, ALeaseThatIsLetGoKeepsWhatItIsFor) {
  KvStore store(TestLayout({0}, 4), 4, PrefixCache::kOn);
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  constexpr ContextPolicy kPolicy = {.type = ContextPolicyType::kSinks, .n_ctx = 4};
  Lease lease = store.NewLease(kPolicy);
  lease.prefers_cache = true;
  store.Expect(lease, {.tokens = tokens}, KvStore::Beyond::kAsItWas, /*at_least=*/3);
  EXPECT_TRUE(lease.expected.ends_within_page);
  store.Acquire(lease, {.tokens = tokens});
  Extend(store, lease, 0, 10);
  const uint64_t id = lease.id;
  store.SetAside(lease, 10);
  const auto expect_kept = [&] {
    EXPECT_EQ(lease.policy, kPolicy);
    EXPECT_TRUE(lease.prefers_cache);
    EXPECT_EQ(lease.expected.tokens, 3);
  };
  expect_kept();
  store.Expect(lease, {.tokens = tokens}, KvStore::Beyond::kAsItWas);
  EXPECT_EQ(lease.expected.tokens, 10);
  EXPECT_FALSE(lease.expected.ends_within_page) << "its page is its own";
  lease.expected.tokens = 3;
  ASSERT_EQ(store.Acquire(lease, {.tokens = tokens}), 10);
  EXPECT_NE(lease.id, id) << "its tables may be others";
  expect_kept();
  store.Release(lease);
  expect_kept();
}

TEST(KvStoreTest, APageJustFreedIsTakenNext) {
  KvStore store(TestLayout({0}, 4), 8, PrefixCache::kOff);
  Lease first = store.NewLease();
  Extend(store, first, 0, 4);
  Lease second = store.NewLease();
  Extend(store, second, 0, 4);
  const PageId page = first.tables[0].pages[0];
  store.Release(first);
  Extend(store, second, 4, 8);
  EXPECT_EQ(second.tables[0].pages[1], page);
}

TEST(KvStoreDeathTest, AbortsWhereMoreIsTakenThanIsAvailable) {
  KvStore store(TestLayout({0}, 4), 1, PrefixCache::kOff);
  Lease lease = store.NewLease();
  std::vector<PageCopy> copies;
  EXPECT_DEATH(store.Extend(lease, 0, 8, &copies), "is empty");
}

// page 4, a group without a window and one with window 6:
//
//   accepted 13: the query at 13 sees 8..13        |0..3|4..7|8..11|12..15|
//   windowed table                                            ^ kv_base 8
TEST(KvStoreTest, AWindowedTableDropsPagesThatNoLaterQuerySees) {
  KvStore store(TestLayout({0, 6}, 4), 100, PrefixCache::kOff);
  Lease lease = store.NewLease();
  Extend(store, lease, 0, 13);
  EXPECT_EQ(lease.tables[0].pages.size(), 4u);
  EXPECT_EQ(lease.tables[1].pages.size(), 4u);
  const std::vector<PageId> before = lease.tables[1].pages;
  store.Roll(lease, 12);  // the query at 12 sees 7..12: page [4, 8) is still wanted
  EXPECT_EQ(lease.tables[1].kv_base, 4);
  store.Roll(lease, 13);
  EXPECT_EQ(lease.tables[1].kv_base, 8);
  EXPECT_EQ(lease.tables[1].pages, std::vector<PageId>(before.begin() + 2, before.end()))
      << "pages never move";
  EXPECT_EQ(lease.tables[0].kv_base, 0);
  EXPECT_EQ(lease.tables[0].pages.size(), 4u);
  EXPECT_EQ(store.held_pages(), 6);
}

TEST(KvStoreTest, AWindowOfOneKeepsNothingAtAPageBorder) {
  KvStore store(TestLayout({1}, 4), 10, PrefixCache::kOff);
  Lease lease = store.NewLease();
  Extend(store, lease, 0, 8);
  store.Roll(lease, 8);
  EXPECT_TRUE(lease.tables[0].pages.empty());
  EXPECT_EQ(lease.tables[0].kv_base, 8);
  Extend(store, lease, 8, 9);
  EXPECT_EQ(lease.tables[0].pages.size(), 1u);
}

// Every window and chunk around a page, two steps ahead of the accepted length: never a visible key missing,
// never more pages than the bound, and the bound is reached.
TEST(KvStoreTest, WindowedTablesStayWithinTheBoundAndReachIt) {
  constexpr int32_t kPage = 4;
  for (int32_t window : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17}) {
    for (int64_t chunk : {1, 2, 3, 4, 5, 8, 9}) {
      KvStore store(TestLayout({window}, kPage), 1000, PrefixCache::kOff);
      Lease lease = store.NewLease();
      const int64_t bound = PagesFor(window - 1 + 2 * chunk, kPage) + 1;
      int64_t most = 0;
      int64_t accepted = 0;
      int64_t scheduled = 0;
      for (int step = 0; step < 200; ++step) {
        Extend(store, lease, scheduled, scheduled + chunk);
        scheduled += chunk;
        const int64_t held = static_cast<int64_t>(lease.tables[0].pages.size());
        most = std::max(most, held);
        ASSERT_LE(held, bound) << "window " << window << " chunk " << chunk << " step " << step;
        ASSERT_LE(lease.tables[0].kv_base, FirstVisible(accepted, window));
        ASSERT_GE(lease.tables[0].kv_base + held * kPage, scheduled);
        if (scheduled - accepted < 2 * chunk) continue;  // one more step fits in flight
        accepted += chunk;
        store.Roll(lease, accepted);
        ASSERT_GT(lease.tables[0].kv_base + kPage, FirstVisible(accepted, window))
            << "a page is kept for nothing";
      }
      EXPECT_EQ(store.layout().PagesForGroup(0, scheduled, 2 * chunk), bound);
      // With odd chunks every alignment occurs, so the span of window - 1 + 2 * chunk tokens meets as many
      // pages as it can: floor((span - 2) / page) + 2.
      const int64_t span = window - 1 + 2 * chunk;
      if (chunk % 2 == 1) {
        EXPECT_EQ(most, span < 2 ? 1 : (span - 2) / kPage + 2);
      }
      store.Release(lease);
      EXPECT_EQ(store.free_pages(), 1000);
    }
  }
}

TEST(KvStoreTest, AForkSharesEveryPageAndCopiesTheOneItWrites) {
  KvStore store(TestLayout({0, 8}, 4), 100, PrefixCache::kOff);
  Lease parent = store.NewLease();
  Extend(store, parent, 0, 10);
  const int64_t held = store.held_pages();
  Lease child = store.Fork(parent, 10);
  EXPECT_EQ(store.held_pages(), held) << "sharing takes no page";
  for (int group : {0, 1}) EXPECT_EQ(child.tables[group].pages, parent.tables[group].pages);

  const Lease before = child;
  const std::vector<PageCopy> copies = Extend(store, child, 10, 11);
  ASSERT_EQ(copies.size(), 2u) << "one per group";
  for (int group : {0, 1}) {
    EXPECT_EQ(copies[group].from, before.tables[group].pages.back());
    EXPECT_EQ(copies[group].to, child.tables[group].pages.back());
    EXPECT_NE(child.tables[group].pages.back(), parent.tables[group].pages.back());
    EXPECT_EQ(child.tables[group].pages.front(), parent.tables[group].pages.front())
        << "full pages stay shared";
  }
  EXPECT_TRUE(Extend(store, parent, 10, 11).empty()) << "the parent is alone on its last page now";
  store.Release(parent);
  EXPECT_EQ(store.references(child.tables[0].pages[0]), 1) << "a page outlives its first owner";
  store.Release(child);
  EXPECT_EQ(store.held_pages(), 0);
}

TEST(KvStoreTest, HeldPagesAreCountedByGroupAndSharedOnesOnce) {
  KvStore store(TestLayout({0, 8}, 4), 100, PrefixCache::kOff);
  Lease parent = store.NewLease();
  Extend(store, parent, 0, 20);
  EXPECT_EQ(store.pool().held_pages_of_group(), (std::vector<int64_t>{5, 5}));
  store.Roll(parent, 20);  // the query at 20 sees 13..20
  EXPECT_EQ(store.pool().held_pages_of_group(), (std::vector<int64_t>{5, 2}));
  Lease child = store.Fork(parent, 20);
  EXPECT_EQ(store.pool().held_pages_of_group(), (std::vector<int64_t>{5, 2}));
  Extend(store, child, 19, 20);  // a copy of the last page in each
  EXPECT_EQ(store.pool().held_pages_of_group(), (std::vector<int64_t>{6, 3}));
  store.Release(parent);
  store.Release(child);
  EXPECT_EQ(store.pool().held_pages_of_group(), (std::vector<int64_t>{0, 0}));
}

TEST(KvStoreTest, AForkAtAPageBorderNeedsNoCopy) {
  KvStore store(TestLayout({0}, 4), 100, PrefixCache::kOff);
  Lease parent = store.NewLease();
  Extend(store, parent, 0, 8);
  Lease child = store.Fork(parent, 8);
  EXPECT_TRUE(Extend(store, child, 8, 9).empty());
  EXPECT_TRUE(Extend(store, parent, 8, 9).empty());
  EXPECT_NE(child.tables[0].pages[2], parent.tables[0].pages[2]);
}

TEST(KvStoreTest, AForkLeavesOutPagesThatTheParentTookAhead) {
  KvStore store(TestLayout({0}, 4), 100, PrefixCache::kOff);
  Lease parent = store.NewLease();
  Extend(store, parent, 0, 8);
  Extend(store, parent, 8, 9);  // the parent's first decode step is in flight already
  Lease child = store.Fork(parent, 8);
  EXPECT_EQ(child.tables[0].pages.size(), 2u);
}

// After a refused draft, [9, 12) is written again: the shared page holds accepted keys, so it is copied; a
// shared page that starts at or after the first rewritten position is replaced without a copy.
TEST(KvStoreTest, RewritingSharedPagesCopiesOnlyTheOneWithKeysToKeep) {
  KvStore store(TestLayout({0}, 4), 100, PrefixCache::kOff);
  Lease lease = store.NewLease();
  Extend(store, lease, 0, 16);
  Lease other = store.Fork(lease, 16);
  const std::vector<PageCopy> copies = Extend(store, lease, 9, 16);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].from, other.tables[0].pages[2]);
  EXPECT_NE(lease.tables[0].pages[3], other.tables[0].pages[3]);
}

TEST(KvStoreTest, SharedPagesSurviveTheRollOfOneOwner) {
  KvStore store(TestLayout({4}, 4), 100, PrefixCache::kOff);
  Lease parent = store.NewLease();
  Extend(store, parent, 0, 12);
  Lease child = store.Fork(parent, 12);
  store.Roll(parent, 12);
  EXPECT_EQ(parent.tables[0].kv_base, 8);
  EXPECT_EQ(child.tables[0].kv_base, 0);
  EXPECT_EQ(store.held_pages(), 3);
  store.Roll(child, 12);
  EXPECT_EQ(store.held_pages(), 1);
}

TEST(KvStoreTest, PagesToReachIsWhatASequenceTakesInAtWorst) {
  const KvLayout layout = TestLayout({0, 10}, 4);
  KvStore store(layout, 1000, PrefixCache::kOff);
  for (int64_t end : {1, 3, 4, 5, 11, 12, 13, 40, 41, 100}) {
    Lease lease = store.NewLease();
    EXPECT_EQ(store.PagesToReach(lease, end, 4), layout.PagesForSequence(end, 4));
    int64_t most = 0;
    for (int64_t at = 0; at < end; at += 4) {
      Extend(store, lease, at, std::min(at + 4, end));
      most = std::max(most, store.held_pages());
      EXPECT_LE(store.held_pages() + store.PagesToReach(lease, end, 4), layout.PagesForSequence(end, 4));
      store.Roll(lease, std::min(at + 4, end));
    }
    EXPECT_LE(most, layout.PagesForSequence(end, 4)) << "end " << end;
    store.Release(lease);
  }
}

// Random tables that fork, extend, roll and are released: every page is counted once, and all come back.
TEST(KvStoreTest, RandomOwnersNeverLoseAPage) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random); };
  KvStore store(TestLayout({0, 0, 12, 12, 3, 3}, 4), 200, PrefixCache::kOff);
  struct Owner {
    Lease lease;
    int64_t written = 0;
  };
  std::vector<Owner> owners;
  const int64_t rounds = ScaledCount(20000, 1000);
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t what = below(10);
    if (owners.empty() || (what == 0 && owners.size() < 12)) {
      owners.push_back({store.NewLease(), 0});
    } else if (what == 1 && owners.size() < 12) {
      const Owner& parent = owners[below(static_cast<int64_t>(owners.size()))];
      owners.push_back({store.Fork(parent.lease, parent.written), parent.written});
    } else if (what == 2) {
      const int64_t which = below(static_cast<int64_t>(owners.size()));
      store.Release(owners[which].lease);
      owners.erase(owners.begin() + which);
    } else {
      Owner& owner = owners[below(static_cast<int64_t>(owners.size()))];
      const int64_t end = owner.written + 1 + below(9);
      if (store.PagesNeeded(owner.lease, owner.written, end) > store.free_pages()) {
        store.Release(owner.lease);
        owner.written = 0;
        continue;
      }
      Extend(store, owner.lease, owner.written, end);
      owner.written = end;
      store.Roll(owner.lease, owner.written);
    }
    store.CheckAccounting();
    std::vector<int32_t> counts(200, 0);
    for (const Owner& owner : owners) {
      for (const PageTable& table : owner.lease.tables) {
        for (PageId page : table.pages) ++counts[page];
      }
    }
    for (PageId page = 0; page < 200; ++page) ASSERT_EQ(store.references(page), counts[page]);
  }
  for (Owner& owner : owners) store.Release(owner.lease);
  EXPECT_EQ(store.free_pages(), 200);
}

}  // namespace
}  // namespace tramontane
