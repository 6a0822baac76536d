#include "engine/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/paged_kv.h"
#include "tests/engine/fake_serving.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

std::vector<PageCopy> Extend(KvCache& cache, std::vector<PageTable>& tables, int64_t written, int64_t end) {
  const int64_t needed = cache.PagesNeeded(tables, written, end);
  const int64_t before = cache.pool().free_pages();
  std::vector<PageCopy> copies;
  cache.Extend(tables, written, end, &copies);
  EXPECT_EQ(before - cache.pool().free_pages(), needed) << "PagesNeeded(" << written << ", " << end << ")";
  return copies;
}

// page 4, a group without a window and one with window 6:
//
//   accepted 13: the query at 13 sees 8..13        |0..3|4..7|8..11|12..15|
//   windowed table                                            ^ kv_base 8
TEST(KvCacheTest, AWindowedTableDropsPagesThatNoLaterQuerySees) {
  KvCache cache(TestLayout({0, 6}, 4), 100);
  std::vector<PageTable> tables = cache.NewTables();
  Extend(cache, tables, 0, 13);
  EXPECT_EQ(tables[0].pages.size(), 4u);
  EXPECT_EQ(tables[1].pages.size(), 4u);
  const std::vector<PageId> before = tables[1].pages;
  cache.Roll(tables, 12);  // the query at 12 sees 7..12: page [4, 8) is still wanted
  EXPECT_EQ(tables[1].kv_base, 4);
  cache.Roll(tables, 13);
  EXPECT_EQ(tables[1].kv_base, 8);
  EXPECT_EQ(tables[1].pages, std::vector<PageId>(before.begin() + 2, before.end())) << "pages never move";
  EXPECT_EQ(tables[0].kv_base, 0);
  EXPECT_EQ(tables[0].pages.size(), 4u);
  EXPECT_EQ(cache.pool().held_pages(), 6);
}

TEST(KvCacheTest, AWindowOfOneKeepsNothingAtAPageBorder) {
  KvCache cache(TestLayout({1}, 4), 10);
  std::vector<PageTable> tables = cache.NewTables();
  Extend(cache, tables, 0, 8);
  cache.Roll(tables, 8);
  EXPECT_TRUE(tables[0].pages.empty());
  EXPECT_EQ(tables[0].kv_base, 8);
  Extend(cache, tables, 8, 9);
  EXPECT_EQ(tables[0].pages.size(), 1u);
}

// Every window and chunk around a page, two steps ahead of the accepted length: never a visible key missing,
// never more pages than the bound, and the bound is reached.
TEST(KvCacheTest, WindowedTablesStayWithinTheBoundAndReachIt) {
  constexpr int32_t kPage = 4;
  for (int32_t window : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17}) {
    for (int64_t chunk : {1, 2, 3, 4, 5, 8, 9}) {
      KvCache cache(TestLayout({window}, kPage), 1000);
      std::vector<PageTable> tables = cache.NewTables();
      const int64_t bound = PagesFor(window - 1 + 2 * chunk, kPage) + 1;
      int64_t most = 0;
      int64_t accepted = 0;
      int64_t scheduled = 0;
      for (int step = 0; step < 200; ++step) {
        Extend(cache, tables, scheduled, scheduled + chunk);
        scheduled += chunk;
        const int64_t held = static_cast<int64_t>(tables[0].pages.size());
        most = std::max(most, held);
        ASSERT_LE(held, bound) << "window " << window << " chunk " << chunk << " step " << step;
        ASSERT_LE(tables[0].kv_base, FirstVisible(accepted, window));
        ASSERT_GE(tables[0].kv_base + held * kPage, scheduled);
        if (scheduled - accepted < 2 * chunk) continue;  // one more step fits in flight
        accepted += chunk;
        cache.Roll(tables, accepted);
        ASSERT_GT(tables[0].kv_base + kPage, FirstVisible(accepted, window)) << "a page is kept for nothing";
      }
      EXPECT_EQ(cache.layout().PagesForGroup(0, scheduled, 2 * chunk), bound);
      // With odd chunks every alignment occurs, so the span of window - 1 + 2 * chunk tokens meets as many
      // pages as it can: floor((span - 2) / page) + 2.
      const int64_t span = window - 1 + 2 * chunk;
      if (chunk % 2 == 1) {
        EXPECT_EQ(most, span < 2 ? 1 : (span - 2) / kPage + 2);
      }
      cache.Clear(tables);
      EXPECT_EQ(cache.pool().free_pages(), 1000);
    }
  }
}

TEST(KvCacheTest, AForkSharesEveryPageAndCopiesTheOneItWrites) {
  KvCache cache(TestLayout({0, 8}, 4), 100);
  std::vector<PageTable> parent = cache.NewTables();
  Extend(cache, parent, 0, 10);
  const int64_t held = cache.pool().held_pages();
  std::vector<PageTable> child = cache.Fork(parent, 10);
  EXPECT_EQ(cache.pool().held_pages(), held) << "sharing takes no page";
  for (int group : {0, 1}) EXPECT_EQ(child[group].pages, parent[group].pages);

  const std::vector<PageTable> before = child;
  const std::vector<PageCopy> copies = Extend(cache, child, 10, 11);
  ASSERT_EQ(copies.size(), 2u) << "one per group";
  for (int group : {0, 1}) {
    EXPECT_EQ(copies[group].from, before[group].pages.back());
    EXPECT_EQ(copies[group].to, child[group].pages.back());
    EXPECT_NE(child[group].pages.back(), parent[group].pages.back());
    EXPECT_EQ(child[group].pages.front(), parent[group].pages.front()) << "full pages stay shared";
  }
  EXPECT_TRUE(Extend(cache, parent, 10, 11).empty()) << "the parent is alone on its last page now";
  cache.Clear(parent);
  EXPECT_EQ(cache.pool().references(child[0].pages[0]), 1) << "a page outlives its first owner";
  cache.Clear(child);
  EXPECT_EQ(cache.pool().held_pages(), 0);
}

TEST(KvCacheTest, HeldPagesAreCountedByGroupAndSharedOnesOnce) {
  KvCache cache(TestLayout({0, 8}, 4), 100);
  std::vector<PageTable> parent = cache.NewTables();
  Extend(cache, parent, 0, 20);
  EXPECT_EQ(cache.held_pages_of_group(), (std::vector<int64_t>{5, 5}));
  cache.Roll(parent, 20);  // the query at 20 sees 13..20
  EXPECT_EQ(cache.held_pages_of_group(), (std::vector<int64_t>{5, 2}));
  std::vector<PageTable> child = cache.Fork(parent, 20);
  EXPECT_EQ(cache.held_pages_of_group(), (std::vector<int64_t>{5, 2}));
  Extend(cache, child, 19, 20);  // a copy of the last page in each
  EXPECT_EQ(cache.held_pages_of_group(), (std::vector<int64_t>{6, 3}));
  cache.Clear(parent);
  cache.Clear(child);
  EXPECT_EQ(cache.held_pages_of_group(), (std::vector<int64_t>{0, 0}));
}

TEST(KvCacheTest, AForkAtAPageBorderNeedsNoCopy) {
  KvCache cache(TestLayout({0}, 4), 100);
  std::vector<PageTable> parent = cache.NewTables();
  Extend(cache, parent, 0, 8);
  std::vector<PageTable> child = cache.Fork(parent, 8);
  EXPECT_TRUE(Extend(cache, child, 8, 9).empty());
  EXPECT_TRUE(Extend(cache, parent, 8, 9).empty());
  EXPECT_NE(child[0].pages[2], parent[0].pages[2]);
}

TEST(KvCacheTest, AForkLeavesOutPagesThatTheParentTookAhead) {
  KvCache cache(TestLayout({0}, 4), 100);
  std::vector<PageTable> parent = cache.NewTables();
  Extend(cache, parent, 0, 8);
  Extend(cache, parent, 8, 9);  // the parent's first decode step is in flight already
  std::vector<PageTable> child = cache.Fork(parent, 8);
  EXPECT_EQ(child[0].pages.size(), 2u);
}

// After a refused draft, [9, 12) is written again: the shared page holds accepted keys, so it is copied; a
// shared page that starts at or after the first rewritten position is replaced without a copy.
TEST(KvCacheTest, RewritingSharedPagesCopiesOnlyTheOneWithKeysToKeep) {
  KvCache cache(TestLayout({0}, 4), 100);
  std::vector<PageTable> tables = cache.NewTables();
  Extend(cache, tables, 0, 16);
  std::vector<PageTable> other = cache.Fork(tables, 16);
  const std::vector<PageCopy> copies = Extend(cache, tables, 9, 16);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].from, other[0].pages[2]);
  EXPECT_NE(tables[0].pages[3], other[0].pages[3]);
}

TEST(KvCacheTest, SharedPagesSurviveTheRollOfOneOwner) {
  KvCache cache(TestLayout({4}, 4), 100);
  std::vector<PageTable> parent = cache.NewTables();
  Extend(cache, parent, 0, 12);
  std::vector<PageTable> child = cache.Fork(parent, 12);
  cache.Roll(parent, 12);
  EXPECT_EQ(parent[0].kv_base, 8);
  EXPECT_EQ(child[0].kv_base, 0);
  EXPECT_EQ(cache.pool().held_pages(), 3);
  cache.Roll(child, 12);
  EXPECT_EQ(cache.pool().held_pages(), 1);
}

TEST(KvCacheTest, PagesToReachIsWhatASequenceTakesInAtWorst) {
  const KvLayout layout = TestLayout({0, 10}, 4);
  KvCache cache(layout, 1000);
  for (int64_t end : {1, 3, 4, 5, 11, 12, 13, 40, 41, 100}) {
    std::vector<PageTable> tables = cache.NewTables();
    EXPECT_EQ(cache.PagesToReach(tables, end, 4), layout.PagesForSequence(end, 4));
    int64_t most = 0;
    for (int64_t at = 0; at < end; at += 4) {
      Extend(cache, tables, at, std::min(at + 4, end));
      most = std::max(most, cache.pool().held_pages());
      EXPECT_LE(cache.pool().held_pages() + cache.PagesToReach(tables, end, 4),
                layout.PagesForSequence(end, 4));
      cache.Roll(tables, std::min(at + 4, end));
    }
    EXPECT_LE(most, layout.PagesForSequence(end, 4)) << "end " << end;
    cache.Clear(tables);
  }
}

// Random tables that fork, extend, roll and clear: every page is counted once, and all come back.
TEST(KvCacheTest, RandomOwnersNeverLoseAPage) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random); };
  KvCache cache(TestLayout({0, 0, 12, 12, 3, 3}, 4), 200);
  struct Owner {
    std::vector<PageTable> tables;
    int64_t written = 0;
  };
  std::vector<Owner> owners;
  const int64_t rounds = ScaledCount(20000, 1000);
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t what = below(10);
    if (owners.empty() || (what == 0 && owners.size() < 12)) {
      owners.push_back({cache.NewTables(), 0});
    } else if (what == 1 && owners.size() < 12) {
      const Owner& parent = owners[below(static_cast<int64_t>(owners.size()))];
      owners.push_back({cache.Fork(parent.tables, parent.written), parent.written});
    } else if (what == 2) {
      const int64_t which = below(static_cast<int64_t>(owners.size()));
      cache.Clear(owners[which].tables);
      owners.erase(owners.begin() + which);
    } else {
      Owner& owner = owners[below(static_cast<int64_t>(owners.size()))];
      const int64_t end = owner.written + 1 + below(9);
      if (cache.PagesNeeded(owner.tables, owner.written, end) > cache.pool().free_pages()) {
        cache.Clear(owner.tables);
        owner.written = 0;
        continue;
      }
      Extend(cache, owner.tables, owner.written, end);
      owner.written = end;
      cache.Roll(owner.tables, owner.written);
    }
    cache.pool().CheckAccounting();
    std::vector<int32_t> counts(200, 0);
    for (const Owner& owner : owners) {
      for (const PageTable& table : owner.tables) {
        for (PageId page : table.pages) ++counts[page];
      }
    }
    for (PageId page = 0; page < 200; ++page) ASSERT_EQ(cache.pool().references(page), counts[page]);
  }
  for (Owner& owner : owners) cache.Clear(owner.tables);
  EXPECT_EQ(cache.pool().free_pages(), 200);
}

}  // namespace
}  // namespace tramontane
