// The prefix cache of KvStore: what is found, what is kept, what goes first.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv/kv_store.h"
#include "engine/request/request.h"
#include "kernels/paged_kv.h"
#include "tests/engine/fake_serving.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

// Two blocks of four ids.
TEST(TextNamesTest, AMarkOfSeveralBlocksGoesWithItsLastPin) {
  const KvLayout layout = TestLayout({0}, 4);
  TextNames names(layout, 8, 1, ChainedHash, [](TextNames::Room) { return false; });
  const PrefixTree::Node salt = names.PinSalt("of twenty characters");
  EXPECT_EQ(names.tree().nodes(), 2);
  EXPECT_EQ(names.FindSalt("of twenty characters"), salt);
  names.tree().Unpin(salt);
  EXPECT_EQ(names.tree().nodes(), 0);
}

constexpr int32_t kPage = 4;

using Tokens = std::vector<int32_t>;

// `count` tokens from `first` on: texts of different hundreds have none in common.
Tokens Text(int32_t first, int64_t count) {
  Tokens tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Computes `tokens` step by step as a scheduler would, from the hit on.
struct Reader {
  Reader(KvStore& the_store, Tokens the_tokens, const std::string& salt = "", int64_t step = 8,
         const ContextPolicy& policy = {})
      : store(the_store), tokens(std::move(the_tokens)), lease(store.NewLease(policy)) {
    const TextIdentity identity = {.salt = salt};
    hit = store.Acquire(lease, {.tokens = tokens, .identity = &identity});
    accepted = hit;
    while (accepted < static_cast<int64_t>(tokens.size())) {
      Advance(std::min<int64_t>(step, static_cast<int64_t>(tokens.size()) - accepted));
    }
  }
  void Advance(int64_t count) {
    std::vector<PageCopy> copies;
    store.Extend(lease, accepted, accepted + count, &copies);
    accepted += count;
    store.Seal(lease, tokens, accepted);
    store.Roll(lease, accepted);
  }
  void Append(const Tokens& more) {
    tokens.insert(tokens.end(), more.begin(), more.end());
    Advance(static_cast<int64_t>(more.size()));
  }
  ~Reader() { store.Release(lease); }

  KvStore& store;
  Tokens tokens;
  Lease lease;
  int64_t hit = 0;
  int64_t accepted = 0;
};

int64_t HitOf(KvStore& store, const Tokens& tokens, const std::string& salt = "",
              int64_t most_tokens = INT64_MAX, const ContextPolicy& policy = {}) {
  Lease lease = store.NewLease(policy);
  const TextIdentity identity = {.salt = salt};
  const PrefixQuery query = {.tokens = tokens, .identity = &identity, .most_tokens = most_tokens};
  const int64_t known = store.KnownPrefix(lease, query);
  const int64_t hit = store.Acquire(lease, query);
  EXPECT_EQ(known, hit);
  store.Release(lease);
  store.CheckAccounting();
  return hit;
}

// Random texts are named, held and let go: what goes first is always the end of a text that nobody holds, as
// long as there is one, and giving up names from there on leaves those that are held.
TEST(PrefixTreeTest, EndsThatNobodyHoldsAreKnown) {
  std::mt19937 random(TestSeed());
  constexpr int64_t kNodes = 60;
  PrefixTree tree(kNodes, 1, 1, ChainedHash);
  std::vector<PrefixTree::Node> tips;  // pinned
  const auto is_held = [&](PrefixTree::Node node) {
    return std::any_of(tips.begin(), tips.end(), [&](PrefixTree::Node tip) {
      for (; tip != PrefixTree::kRoot; tip = tree.above(tip)) {
        if (tip == node) return true;
      }
      return false;
    });
  };
  int64_t given_up = 0;
  for (int step = 0; step < 20'000; ++step) {
    const uint32_t draw = random() % 10;
    if (draw < 6) {  // a tip moves down, or begins
      const bool begins = tips.empty() || random() % 8 == 0;
      if (begins && tips.size() > 6) continue;
      if (begins) tips.push_back(PrefixTree::kRoot);
      PrefixTree::Node& tip = tips[begins ? tips.size() - 1 : random() % tips.size()];
      const std::vector<int32_t> ids = {static_cast<int32_t>(random() % 3)};
      while (tree.full() && tree.OldestEnd() != PrefixTree::kNone) {
        const PrefixTree::Node end = tree.OldestEnd();
        ASSERT_FALSE(is_held(end));
        const int64_t nodes = tree.nodes();
        tree.ClearPage(end, 0);
        ASSERT_EQ(tree.nodes(), nodes - 1) << "a name is free";
        ++given_up;
      }
      if (tree.full()) continue;
      const PrefixTree::Node below = tree.FindOrInsert(tip, tree.HashBelow(tip, ids), ids);
      tree.Pin(below);
      tree.Unpin(tip);
      tip = below;
      if (tree.page(below, 0) == kNoPage) tree.SetPage(below, 0, 1);
    } else if (draw < 7 && !tips.empty()) {
      const size_t which = random() % tips.size();
      tree.Unpin(tips[which]);
      tips.erase(tips.begin() + static_cast<std::ptrdiff_t>(which));
    }
    if (tree.OldestEnd() != PrefixTree::kNone) {
      ASSERT_FALSE(is_held(tree.OldestEnd()));
    }
  }
  EXPECT_GT(given_up, 100);
}

TEST(PrefixCacheTest, FindsWhatWasComputedBefore) {
  KvStore store(TestLayout({0, 6}, kPage), 100, PrefixCache::kOn);
  {
    const Reader run(store, Text(100, 18));
  }
  EXPECT_EQ(store.held_pages(), 0);
  EXPECT_EQ(store.available(), 100) << "what is cached is there to be taken";
  EXPECT_GT(store.cached_pages(), 0);
  EXPECT_EQ(HitOf(store, Text(100, 18)), 16);
  EXPECT_EQ(HitOf(store, Text(100, 16)), 12) << "pages that left the window are there, too";
  EXPECT_EQ(HitOf(store, Text(200, 18)), 0);
}

TEST(PrefixCacheTest, AHitIsLeasedAndTheRestIsTaken) {
  KvStore store(TestLayout({0, 6}, kPage), 100, PrefixCache::kOn);
  {
    const Reader run(store, Text(100, 16));
  }
  Tokens longer = Text(100, 16);
  longer.resize(30, 7);
  Lease lease = store.NewLease();
  const int64_t reach = store.PagesToReach(lease, 30, kPage);
  const int64_t available = store.available();
  ASSERT_EQ(store.Acquire(lease, {.tokens = longer}), 16);
  EXPECT_EQ(lease.tables[0].kv_base, 0);
  EXPECT_EQ(lease.tables[0].pages.size(), 4u);
  EXPECT_EQ(lease.tables[1].kv_base, 8) << "the query at 16 sees 11..16";
  EXPECT_EQ(lease.tables[1].pages.size(), 2u);
  EXPECT_EQ(store.held_pages(), 6);
  EXPECT_EQ(store.available(), available - 6);
  EXPECT_LE(store.PagesToReach(lease, 30, kPage), reach - 6) << "what was enough before is enough now";
  EXPECT_EQ(store.PagesNeeded(lease, 16, 20), 2) << "no page of the hit is written";
  store.Release(lease);
}

TEST(PrefixCacheTest, TwoLeasesShareOnePage) {
  KvStore store(TestLayout({0}, kPage), 100, PrefixCache::kOn);
  const Reader first(store, Text(100, 9));
  const Reader second(store, Text(100, 9));
  EXPECT_EQ(second.hit, 8);
  EXPECT_EQ(second.lease.tables[0].pages[0], first.lease.tables[0].pages[0]);
  EXPECT_EQ(store.references(first.lease.tables[0].pages[1]), 2);
  EXPECT_EQ(store.held_pages(), 4);
}

TEST(PrefixCacheTest, OfTwoPagesWithTheSameTokensTheFirstStaysKnown) {
  KvStore store(TestLayout({0}, kPage), 100, PrefixCache::kOn);
  PageId known = kNoPage;
  {
    Lease late = store.NewLease();  // begins before anything is known, and ends last
    ASSERT_EQ(store.Acquire(late, {.tokens = Text(100, 9)}), 0);
    std::vector<PageCopy> copies;
    store.Extend(late, 0, 9, &copies);
    const Reader first(store, Text(100, 9));
    known = first.lease.tables[0].pages[0];
    store.Seal(late, Text(100, 9), 9);
    store.Release(late);
    EXPECT_EQ(store.cached_pages(), 0) << "its pages are free, not cached";
  }
  EXPECT_EQ(store.cached_pages(), 2);
  const Reader again(store, Text(100, 9));
  EXPECT_EQ(again.lease.tables[0].pages[0], known);
}

TEST(PrefixCacheTest, OnlyFullPagesOfAppliedStepsAreFound) {
  KvStore store(TestLayout({0}, kPage), 100, PrefixCache::kOn);
  Reader run(store, Text(100, 7));
  EXPECT_EQ(HitOf(store, Text(100, 20)), 4);
  std::vector<PageCopy> copies;
  store.Extend(run.lease, 7, 12, &copies);  // planned, and not applied
  run.tokens = Text(100, 12);
  EXPECT_EQ(HitOf(store, Text(100, 20)), 4);
  store.Seal(run.lease, run.tokens, 11);
  EXPECT_EQ(HitOf(store, Text(100, 20)), 8);
}

TEST(PrefixCacheTest, RequestsOfDifferentSaltsShareNothing) {
  for (const int32_t page_size : {1, 4, 16}) {
    KvStore store(TestLayout({0}, page_size), 500, PrefixCache::kOn);
    const Tokens text = Text(100, 40);
    const std::string longest(kMaxCacheSaltBytes, 'x');
    for (const std::string& salt : {std::string(), std::string("a"), std::string("b"), std::string("a\0", 2),
                                    std::string("abcd"), std::string("abcde"), longest}) {
      EXPECT_EQ(HitOf(store, text, salt), 0) << salt;
      {
        const Reader run(store, text, salt);
      }
      EXPECT_EQ(HitOf(store, text, salt), 39 / page_size * page_size) << salt;
    }
  }
}

TEST(PrefixCacheTest, AHitEndsWhereSomethingIsAskedOfAPosition) {
  KvStore store(TestLayout({0}, kPage), 100, PrefixCache::kOn);
  {
    const Reader run(store, Text(100, 20));
  }
  EXPECT_EQ(HitOf(store, Text(100, 20), "", 0), 0);
  EXPECT_EQ(HitOf(store, Text(100, 20), "", 11), 8);
  EXPECT_EQ(HitOf(store, Text(100, 20), "", 12), 12);
}

TEST(PrefixCacheTest, WhatCannotBeTrustedIsForgotten) {
  KvStore store(TestLayout({0, 6}, kPage), 100, PrefixCache::kOn);
  {
    Reader run(store, Text(100, 30));
    store.Forget(run.lease);
    EXPECT_EQ(HitOf(store, Text(100, 31)), 0);
    run.Append(Text(500, 10));
  }
  EXPECT_EQ(store.cached_pages(), 0) << "and nothing of it is sealed later";
  {
    const Reader run(store, Text(100, 30));
  }
  EXPECT_EQ(HitOf(store, Text(100, 31)), 28);
}

TEST(PrefixCacheTest, AForkSealsItsOwnTokens) {
  KvStore store(TestLayout({0}, kPage), 100, PrefixCache::kOn);
  Reader parent(store, Text(100, 10));
  Lease child = store.Fork(parent.lease, 10);
  Tokens tokens = parent.tokens;
  parent.Append(Text(500, 6));
  tokens.resize(16, 9);
  std::vector<PageCopy> copies;
  store.Extend(child, 10, 16, &copies);
  EXPECT_EQ(copies.size(), 0u) << "the parent has copied the page already";
  store.Seal(child, tokens, 16);
  store.Release(child);
  parent.tokens.push_back(0);
  tokens.push_back(0);
  EXPECT_EQ(HitOf(store, tokens), 16);
  EXPECT_EQ(HitOf(store, parent.tokens), 16);
}

TEST(PrefixCacheTest, AForkWithinAPageThatIsKnownCopiesIt) {
  KvStore store(TestLayout({0}, kPage), 100, PrefixCache::kOn);
  const Reader parent(store, Text(100, 12));
  Lease child = store.Fork(parent.lease, 6);
  std::vector<PageCopy> copies;
  ASSERT_EQ(store.PagesNeeded(child, 6, 7), 1);
  store.Extend(child, 6, 7, &copies);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].from, parent.lease.tables[0].pages[1]);
  EXPECT_EQ(child.sealed, 4) << "what it shares in full";
  store.Release(child);
  EXPECT_EQ(HitOf(store, Text(100, 13)), 12);
}

// As where the parent's next token was on its way when it was forked, and the fork was held meanwhile.
TEST(PrefixCacheTest, AForkAloneInAPageThatIsKnownTakesItsNameAway) {
  KvStore store(TestLayout({0}, kPage), 100, PrefixCache::kOn);
  Lease parent = store.NewLease();
  const Tokens tokens = Text(100, 12);
  ASSERT_EQ(store.Acquire(parent, {.tokens = tokens}), 0);
  std::vector<PageCopy> copies;
  store.Extend(parent, 0, 11, &copies);
  store.Extend(parent, 11, 12, &copies);
  Lease child = store.Fork(parent, 11);
  store.Seal(parent, tokens, 12);
  const PageId page = child.tables[0].pages[2];
  EXPECT_TRUE(store.has_name(page));
  store.Release(parent);
  EXPECT_EQ(HitOf(store, Text(100, 13)), 12);
  EXPECT_EQ(store.PagesNeeded(child, 11, 12), 0);
  store.Extend(child, 11, 12, &copies);
  EXPECT_TRUE(copies.empty());
  EXPECT_EQ(child.tables[0].pages[2], page);
  EXPECT_EQ(HitOf(store, Text(100, 13)), 8) << "other tokens are written there now";
  store.Release(child);
  store.CheckAccounting();
}

// ---- eviction -----------------------------------------------------------------------------------

TEST(PrefixCacheTest, TheOldestTextGoesFirstAndFromItsEnd) {
  KvStore store(TestLayout({0}, kPage), 10, PrefixCache::kOn);
  {
    const Reader run(store, Text(100, 20));
  }
  {
    const Reader run(store, Text(200, 20));
  }
  EXPECT_EQ(store.free_pages(), 0);
  const Reader run(store, Text(300, 8));  // takes two pages
  EXPECT_EQ(HitOf(store, Text(100, 30)), 12);
  EXPECT_EQ(HitOf(store, Text(200, 30)), 20);
}

TEST(PrefixCacheTest, WhatWasFoundIsYoungAgain) {
  KvStore store(TestLayout({0}, kPage), 10, PrefixCache::kOn);
  {
    const Reader run(store, Text(100, 20));
  }
  {
    const Reader run(store, Text(200, 20));
  }
  EXPECT_EQ(HitOf(store, Text(100, 30)), 20);
  const Reader run(store, Text(300, 8));
  EXPECT_EQ(HitOf(store, Text(100, 30)), 20);
  EXPECT_EQ(HitOf(store, Text(200, 30)), 12);
}

// As if a sequence had come and gone, but nothing is leased for it.
TEST(PrefixCacheTest, WhatIsRenewedGoesLastAndFromItsEnd) {
  KvStore store(TestLayout({0}, kPage), 8, PrefixCache::kOn);
  for (const int32_t first : {100, 200}) const Reader run(store, Text(first, 16));
  EXPECT_EQ(store.Renew(store.NewLease(), {.tokens = Text(100, 17)}), 16);
  EXPECT_EQ(store.held_pages(), 0);
  const Reader other(store, Text(300, 20));
  EXPECT_EQ(HitOf(store, Text(200, 17)), 0);
  EXPECT_EQ(HitOf(store, Text(100, 17)), 12);
}

// Four blocks are known when a lease waits, and two more when it gets its pages.
TEST(PrefixCacheTest, WhatIsExpectedIsLookedUpOnce) {
  KvStore store(TestLayout({0}, kPage), 100, PrefixCache::kOn);
  {
    const Reader run(store, Text(100, 18));
  }
  Lease lease = store.NewLease();
  const Tokens text = Text(100, 30);
  store.Expect(lease, {.tokens = text}, KvStore::Beyond::kAsItWas);
  const int64_t walked = store.walked_blocks();
  store.Expect(lease, {.tokens = text}, KvStore::Beyond::kAsItWas);
  EXPECT_EQ(store.walked_blocks() - walked, 2) << "the one that is not known, which two look for";
  EXPECT_EQ(lease.expected.tokens, 16);
  {
    const Reader run(store, Text(100, 26));
  }
  const int64_t before = store.walked_blocks();
  EXPECT_EQ(store.Acquire(lease, {.tokens = text}), 24);
  EXPECT_EQ(store.walked_blocks() - before, 3 + 6) << "two blocks and none, six pages";
  store.Release(lease);
}

// The nodes of a text that was looked up are another one's when its lease gets its pages.
TEST(PrefixCacheTest, WhatWasLookedUpAndHasGoneIsNotTakenForAnother) {
  KvStore store(TestLayout({0}, kPage), 4, PrefixCache::kOn);
  {
    const Reader run(store, Text(100, 16));
  }
  Lease lease = store.NewLease();
  const Tokens text = Text(100, 17);
  store.Expect(lease, {.tokens = text}, KvStore::Beyond::kAsItWas);
  EXPECT_EQ(lease.expected.tokens, 16);
  {
    const Reader run(store, Text(200, 16));
  }
  EXPECT_EQ(store.KnownPrefix(lease, {.tokens = text}), 0);
  EXPECT_EQ(store.Acquire(lease, {.tokens = text}), 0);
  store.Release(lease);
}

TEST(PrefixCacheTest, PagesWhosePartnersAreGoneGoFirst) {
  // Of the first text a page without a window goes; then the windowed one of the same tokens, which no hit
  // can use any more, before anything of the second text.
  KvStore store(TestLayout({0, 100}, kPage), 8, PrefixCache::kOn);
  {
    const Reader run(store, Text(100, 8));
  }
  {
    const Reader run(store, Text(200, 8));
  }
  ASSERT_EQ(store.free_pages(), 0);
  std::vector<PageCopy> copies;
  Lease one = store.NewLease();
  store.Extend(one, 0, 4, &copies);  // a page in each group
  EXPECT_EQ(store.cached_pages(), 6);
  EXPECT_EQ(HitOf(store, Text(100, 9)), 4);
  EXPECT_EQ(HitOf(store, Text(200, 9)), 8);
  store.Release(one);
}

TEST(PrefixCacheTest, PagesThatLeftAWindowMidwayGoBeforeThoseAtEnds) {
  KvStore store(TestLayout({0, 8}, kPage), 26, PrefixCache::kOn);
  {
    Reader run(store, Text(100, 16));  // its prompt ends at 16
    run.Append(Text(116, 12));
    run.Append(Text(128, 12));
  }
  ASSERT_EQ(store.free_pages(), 6);
  const Reader other(store, Text(500, 20));  // ten pages: four must go
  EXPECT_EQ(HitOf(store, Text(100, 17)), 16) << "the end of its prompt is still there";
  EXPECT_EQ(HitOf(store, Text(100, 41)), 40) << "and the end of its answer";
}

// The second text with such a beginning cannot go on with the first one's, of which only the end was kept;
// but from its tokens it is known where they part, and a third one may part there too.
TEST(PrefixCacheTest, WhereTextsPartIsKept) {
  KvStore store(TestLayout({8}, kPage), 16, PrefixCache::kOn);
  const auto beginning_with = [](int32_t own) {
    Tokens text = Text(100, 20);
    const Tokens rest = Text(own, 20);
    text.insert(text.end(), rest.begin(), rest.end());
    return text;
  };
  {
    const Reader first(store, beginning_with(200));
  }
  {
    const Reader other(store, Text(500, 40));
  }  // what the first one passed by goes
  {
    const Reader second(store, beginning_with(300));
    EXPECT_EQ(second.hit, 0);
  }
  {
    const Reader other(store, Text(600, 32));
  }
  EXPECT_EQ(HitOf(store, beginning_with(400)), 20);
}

// And some windows on the way, each eighth: for the second text.
TEST(PrefixCacheTest, OfALongTextSomeWindowsOnTheWayAreKept) {
  KvStore store(TestLayout({8}, kPage), 60, PrefixCache::kOn);
  {
    const Reader first(store, Text(100, 200));
  }
  {
    const Reader other(store, Text(500, 160));
  }
  for (const auto& [parts_at, hit] : std::vector<std::pair<int64_t, int64_t>>{
           {60, 0}, {64, 64}, {100, 64}, {130, 128}, {195, 192}, {199, 196}}) {
    Tokens second = Text(100, parts_at);
    second.push_back(7);
    EXPECT_EQ(HitOf(store, second), hit) << parts_at;
  }
}

// ---- under a policy -----------------------------------------------------------------------------

constexpr ContextPolicy kShiftOf24 = {
    .type = ContextPolicyType::kShift, .n_ctx = 24, .n_keep = 4, .n_discard = 2};

int64_t HitUnder(KvStore& store, const Tokens& tokens, const ContextPolicy& policy) {
  return HitOf(store, tokens, "", INT64_MAX, policy);
}

TEST(PrefixCacheTest, UnderAPolicyItsOwnPagesAreFoundAndOthersUpToWhereItChangesAMask) {
  KvStore store(TestLayout({0, 6}, kPage), 100, PrefixCache::kOn);
  {
    const Reader run(store, Text(100, 50), "", 8, kShiftOf24);
  }
  EXPECT_EQ(HitUnder(store, Text(100, 51), kShiftOf24), 48);
  EXPECT_EQ(HitUnder(store, Text(100, 51), {}), 24);
  for (const ContextPolicy& other :
       {ContextPolicy{.type = ContextPolicyType::kShift, .n_ctx = 24, .n_keep = 4, .n_discard = 3},
        ContextPolicy{.type = ContextPolicyType::kShift, .n_ctx = 25, .n_keep = 4, .n_discard = 2},
        ContextPolicy{.type = ContextPolicyType::kShift, .n_ctx = 24, .n_keep = 3, .n_discard = 2}}) {
    EXPECT_EQ(HitUnder(store, Text(100, 51), other), 24);
  }
  // Sinks stay in sight where the window of 6 passes them.
  EXPECT_EQ(HitUnder(store, Text(100, 51), {.type = ContextPolicyType::kSinks, .n_ctx = 24, .n_keep = 4}), 4);
}

TEST(PrefixCacheTest, UnderAPolicyAHitLeasesTheSinksAndWhatIsStillSeen) {
  KvStore store(TestLayout({0, 6}, kPage), 100, PrefixCache::kOn);
  {
    const Reader run(store, Text(100, 50), "", 8, kShiftOf24);
  }
  Lease lease = store.NewLease(kShiftOf24);
  const Tokens tokens = Text(100, 49);
  ASSERT_EQ(store.Acquire(lease, {.tokens = tokens}), 48);
  // The query at 48 stands at 24 - 1 - 1 behind 26 discarded ones: it sees 0..3, and 30..48; of a window of 6
  // 43..48, for which sinks are out of sight.
  EXPECT_EQ(lease.tables[0].sinks.size(), 1u);
  EXPECT_EQ(lease.tables[0].kv_base, 28);
  EXPECT_EQ(lease.tables[0].pages.size(), 5u);
  EXPECT_TRUE(lease.tables[1].sinks.empty());
  EXPECT_EQ(lease.tables[1].kv_base, 40);
  store.Release(lease);
  store.CheckAccounting();
}

TEST(PrefixCacheTest, AForkUnderAPolicyGoesBackToWhereItHadNone) {
  for (const int32_t page : {1, 4}) {
    KvStore store(TestLayout({0}, page), 300, PrefixCache::kOn);
    Reader run(store, Text(100, 40), "", 8, kShiftOf24);
    Lease fork = store.Fork(run.lease, 40);
    Tokens tokens = Text(100, 40);
    const Tokens more = Text(700, 8);
    tokens.insert(tokens.end(), more.begin(), more.end());
    std::vector<PageCopy> copies;
    store.Extend(fork, 40, 48, &copies);
    store.Seal(fork, tokens, 48);
    store.Release(fork);
    EXPECT_EQ(HitUnder(store, tokens, kShiftOf24), 48 - page);
    Reader young(store, Text(100, 24), "", 8, kShiftOf24);  // no block behind its context
    Lease early = store.Fork(young.lease, 20);
    EXPECT_EQ(early.sealed, 20);
    store.Release(early);
    store.CheckAccounting();
  }
}

// A text without an end is no reason to forget all others: its chain of blocks is let grow no longer.
TEST(PrefixCacheTest, TextsWithoutAnEndNameNoMoreBlocksThanMayBe) {
  KvStore store(TestLayout({0}, kPage), 64, PrefixCache::kOn);
  {
    const Reader other(store, Text(9000, 40));
  }
  {
    Reader endless(store, Text(100, 24), "", 8, kShiftOf24);
    for (int32_t more = 0; more < 400; ++more) endless.Append(Text(124 + 8 * more, 8));
    EXPECT_EQ(endless.lease.sealed, 24 + 2 * 64 / 4 * kPage) << "a quarter of the blocks of 64 pages";
    EXPECT_EQ(HitOf(store, Text(9000, 41)), 40);
  }
  const Reader next(store, Text(5000, 24 + 2 * 64 / 4 * kPage), "", 8, kShiftOf24);
  EXPECT_EQ(next.lease.sealed, 24 + 2 * 64 / 4 * kPage) << "those of a text that ended count no more";
  store.CheckAccounting();
}

// ---- collisions ---------------------------------------------------------------------------------

PrefixHash OneHash(const PrefixHash&, std::span<const int32_t>) { return {1, 2}; }
PrefixHash FewHashes(const PrefixHash& above, std::span<const int32_t> ids) {
  return {0, (above.low * 7 + static_cast<uint64_t>(ids[0])) % 5};
}

TEST(PrefixCacheTest, ACollisionCostsAMissAndNothingElse) {
  KvStore store(TestLayout({0, 6}, kPage), 100, PrefixCache::kOn, OneHash);
  {
    const Reader run(store, Text(100, 18));
  }
  {
    const Reader run(store, Text(200, 18));
  }
  EXPECT_EQ(HitOf(store, Text(100, 18)), 4) << "the first block has the hash";
  EXPECT_EQ(HitOf(store, Text(200, 18)), 0);
}

// As crafted texts would come: with the hashes of their blocks, which whoever submitted them has made.
TEST(PrefixCacheTest, OfTwoTextsWhosePathsAreOneThePagesOfTheFirstAreNeverTheSecondOnes) {
  KvStore store(TestLayout({0}, kPage), 100, PrefixCache::kOn);
  for (const int32_t first : {100, 200}) {
    const Tokens text = Text(first, 18);
    const TextIdentity identity;
    TextPath path(identity, INT64_MAX, Paging(kPage), OneHash);
    path.Extend(text, 16);
    Lease lease = store.NewLease();
    EXPECT_EQ(store.Acquire(lease, {.tokens = text, .identity = &identity, .path = &path}), 0);
    std::vector<PageCopy> copies;
    store.Extend(lease, 0, 18, &copies);
    store.Seal(lease, text, 18, &path);
    EXPECT_EQ(lease.sealed, first == 100 ? 4 : 0) << "one block has the hash, the first text's first";
    EXPECT_EQ(store.KnownPrefix(lease, {.tokens = text, .path = &path}), first == 100 ? 4 : 0);
    store.Release(lease);
    store.CheckAccounting();
  }
}

// ---- against a model ----------------------------------------------------------------------------

// What each page with a name holds, in words: all tokens up to its end. Nothing about hashes, nodes or lists.
struct Shadow {
  using Name = std::pair<size_t, std::string>;  // group, salt and tokens up to the page's end

  static Name NameOf(size_t group, const std::string& salt, const Lease& lease, const Tokens& tokens,
                     int64_t end) {
    std::string text = std::to_string(salt.size()) + "/" + salt + "/";
    const ContextPolicy& policy = lease.policy;
    if (end > lease.plain_len) {
      for (const int64_t number : {int64_t{policy.type == ContextPolicyType::kShift}, policy.n_ctx,
                                   policy.n_keep, policy.n_discard}) {
        text += std::to_string(number) + ",";
      }
    }
    for (int64_t p = 0; p < end; ++p) text += std::to_string(tokens[static_cast<size_t>(p)]) + " ";
    return {group, text};
  }

  void DropWhatIsGone(const KvStore& store) {
    std::erase_if(names, [&](const auto& named) {
      if (store.has_name(named.first)) return false;
      pages.erase(named.second);
      return true;
    });
  }

  std::map<Name, PageId> pages;
  std::map<PageId, Name> names;
};

struct Owner {
  Tokens tokens;
  std::string salt;
  Lease lease;
  int64_t accepted = 0;
};

// Random leases of texts that begin alike, over pools that are too small: what is found is what the model
// knows, no page that is found or held is ever given to another, and states add up after each operation.
class AgainstAModel : public testing::TestWithParam<PrefixHashFunction> {};
const char* const kHashNames[] = {"Good", "Few", "One"};
INSTANTIATE_TEST_SUITE_P(Hashes, AgainstAModel, testing::Values(ChainedHash, FewHashes, OneHash),
                         [](const auto& info) { return kHashNames[info.index]; });

TEST_P(AgainstAModel, FindsWhatWasSealedAndOnlyThat) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  const std::vector<std::vector<int32_t>> models = {{0}, {0, 7}, {6, 6}, {0, 0, 3, 12}, {1}};
  int64_t hits = 0;
  int64_t hits_under_policies = 0;
  for (int64_t round = 0; round < ScaledCount(60, 10); ++round) {
    const KvLayout layout =
        TestLayout(models[static_cast<size_t>(below(5))], static_cast<int32_t>(1 + below(4)));
    const int32_t page = layout.format.page_size;
    KvStore store(layout, 20 + below(60), PrefixCache::kOn, GetParam());
    const std::vector<PrefixGroup> groups = PrefixGroupsOf(layout, {});
    // Half of the leases have one of two policies.
    const std::vector<ContextPolicy> policies = {
        {},
        {},
        {.type = ContextPolicyType::kSinks, .n_ctx = 8 + below(12), .n_keep = below(6)},
        {.type = ContextPolicyType::kShift, .n_ctx = 8 + below(12), .n_keep = 3, .n_discard = 1 + below(4)}};
    Shadow shadow;
    std::vector<Owner> owners;
    std::optional<Owner> waits;  // what it may find has been looked up, some steps ago
    for (int64_t step = 0; step < 300; ++step) {
      const int64_t what = below(10);
      if (owners.empty() || (what == 0 && owners.size() < 8)) {
        const bool has_waited = waits.has_value();
        Owner& owner = owners.emplace_back(std::exchange(waits, std::nullopt).value_or(Owner()));
        // One of a few beginnings of a few tokens, then whatever.
        if (!has_waited) {
          for (int64_t p = 0, common = below(30); p < common; ++p)
            owner.tokens.push_back(static_cast<int32_t>(p));
          for (int64_t more = 1 + below(12); more > 0; --more) {
            owner.tokens.push_back(static_cast<int32_t>(below(2)));
          }
          owner.salt = below(3) == 0 ? "s" : "";
          owner.lease = store.NewLease(policies[static_cast<size_t>(below(4))]);
        }
        const TextIdentity identity = {.salt = owner.salt};
        if (!has_waited && below(2) == 0) {
          store.Expect(owner.lease, {.tokens = owner.tokens, .identity = &identity},
                       KvStore::Beyond::kAsItWas);
          waits = std::move(owner);
          owners.pop_back();
          continue;
        }
        const ContextPolicy policy = owner.lease.policy;
        const int64_t most = below(4) == 0 ? below(20) : INT64_MAX;
        const int64_t available = store.available();
        const auto asked = static_cast<int64_t>(owner.tokens.size());
        const int64_t expected = LongestPrefixHit(
            std::min(asked - 1, most) + 1, layout.format, PrefixGroupsOf(layout, policy),
            [&](size_t group, int64_t index) {
              return shadow.pages.count(Shadow::NameOf(group, owner.salt, owner.lease, owner.tokens,
                                                       (index + 1) * page)) > 0;
            },
            [&](int64_t position) { return LeftAt(layout, policy, position); });
        owner.accepted =
            store.Acquire(owner.lease, {.tokens = owner.tokens, .identity = &identity, .most_tokens = most});
        // Where no row sees more than itself a hit needs no page, and the store goes no further than it has
        // seen. A salt takes blocks, for which there may be no room before pages go.
        const bool sees_others = std::any_of(groups.begin(), groups.end(),
                                             [](const PrefixGroup& group) { return group.window != 1; });
        if (GetParam() == ChainedHash && sees_others && owner.salt.empty()) {
          ASSERT_EQ(owner.accepted, expected);
        } else {
          ASSERT_LE(owner.accepted, expected);
        }
        hits += owner.accepted;
        if (owner.accepted > owner.lease.plain_len) ++hits_under_policies;
        ASSERT_LE(store.available(), available);
        for (size_t g = 0; g < groups.size(); ++g) {
          const PageTable& table = owner.lease.tables[g];
          for (size_t i = 0; i < table.pages.size(); ++i) {
            const int64_t end = table.kv_base + static_cast<int64_t>(i + 1) * page;
            const auto named = shadow.names.find(table.pages[i]);
            ASSERT_NE(named, shadow.names.end());
            ASSERT_EQ(named->second, Shadow::NameOf(g, owner.salt, owner.lease, owner.tokens, end))
                << "another text's page";
          }
          for (size_t i = 0; i < table.sinks.size(); ++i) {
            const auto named = shadow.names.find(table.sinks[i]);
            ASSERT_NE(named, shadow.names.end());
            ASSERT_EQ(named->second, Shadow::NameOf(g, owner.salt, owner.lease, owner.tokens,
                                                    static_cast<int64_t>(i + 1) * page));
          }
          ASSERT_LE(table.kv_base, std::max(FirstVisible(owner.accepted, groups[g].window),
                                            SeenAt(owner.lease, owner.accepted).left));
        }
      } else if (what == 1) {
        const int64_t which = below(static_cast<int64_t>(owners.size()));
        store.Release(owners[static_cast<size_t>(which)].lease);
        owners.erase(owners.begin() + which);
      } else if (what == 2 && owners.size() < 8) {
        const Owner& parent = owners[static_cast<size_t>(below(static_cast<int64_t>(owners.size())))];
        Owner child = parent;
        child.lease = store.Fork(parent.lease, parent.accepted);
        child.tokens.resize(static_cast<size_t>(parent.accepted));
        owners.push_back(std::move(child));
      } else {
        Owner& owner = owners[static_cast<size_t>(below(static_cast<int64_t>(owners.size())))];
        const int64_t end = owner.accepted + 1 + below(2 * page + 1);
        while (static_cast<int64_t>(owner.tokens.size()) < end) {
          owner.tokens.push_back(static_cast<int32_t>(below(2)));
        }
        if (store.PagesNeeded(owner.lease, owner.accepted, end) > store.available()) continue;
        std::vector<PageCopy> copies;
        const int64_t names = static_cast<int64_t>(shadow.names.size());
        const int64_t evicted = store.PagesNeeded(owner.lease, owner.accepted, end) - store.free_pages();
        store.Extend(owner.lease, owner.accepted, end, &copies);
        shadow.DropWhatIsGone(store);
        ASSERT_EQ(names - static_cast<int64_t>(shadow.names.size()), std::max<int64_t>(0, evicted))
            << "no page is evicted while another one is free";
        owner.accepted = end;
        store.Seal(owner.lease, owner.tokens, end);
        shadow.DropWhatIsGone(store);
        for (size_t g = 0; g < groups.size(); ++g) {
          const PageTable& table = owner.lease.tables[g];
          for (size_t i = 0; i < table.pages.size(); ++i) {
            const int64_t page_end = table.kv_base + static_cast<int64_t>(i + 1) * page;
            if (page_end > end || shadow.names.count(table.pages[i]) > 0) continue;
            const Shadow::Name name = Shadow::NameOf(g, owner.salt, owner.lease, owner.tokens, page_end);
            if (!shadow.pages.emplace(name, table.pages[i]).second) continue;  // the first stays known
            shadow.names[table.pages[i]] = name;
          }
        }
        store.Roll(owner.lease, end);
      }
      store.CheckAccounting();
      shadow.DropWhatIsGone(store);
      std::vector<int32_t> leases(static_cast<size_t>(store.total_pages()));
      for (const Owner& owner : owners) {
        for (const PageTable& table : owner.lease.tables) {
          for (const PageId id : table.pages) ++leases[static_cast<size_t>(id)];
          for (const PageId id : table.sinks) ++leases[static_cast<size_t>(id)];
        }
      }
      for (PageId id = 0; id < store.total_pages(); ++id) {
        ASSERT_EQ(store.references(id), leases[static_cast<size_t>(id)]);
      }
    }
    for (Owner& owner : owners) store.Release(owner.lease);
    store.CheckAccounting();
    EXPECT_EQ(store.available(), store.total_pages());
  }
  EXPECT_GT(hits, 0);
  EXPECT_TRUE(GetParam() != ChainedHash || hits_under_policies > 0);
}

}  // namespace
}  // namespace tramontane
