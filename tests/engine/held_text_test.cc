// What is held for those who return: when a text is held, when it is not, and what becomes of its pages.
#include "engine/kv/held_text.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "engine/kv/kv_store.h"
#include "tests/engine/fake_serving.h"
#include "tests/support/test_tier.h"

namespace tramontane {
namespace {

constexpr ContextPolicy kSinksOf8 = {.type = ContextPolicyType::kSinks, .n_ctx = 8};

std::vector<int32_t> HeldTokens(int64_t count, int32_t first = 1) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A lease that has computed the tokens.
Lease Compute(KvStore& store, const std::vector<int32_t>& tokens, const ContextPolicy& policy = {}) {
  Lease lease = store.NewLease(policy);
  int64_t at = store.Acquire(lease, {.tokens = tokens});
  std::vector<PageCopy> copies;
  for (; at < std::ssize(tokens); ++at) {
    store.Extend(lease, at, at + 1, &copies);
    store.Seal(lease, tokens, at + 1);
    store.Roll(lease, at + 1);
  }
  store.EndPlan();
  return lease;
}

// Every page of the pool is taken once, by whom nobody knows.
void TakeAll(KvStore& store) {
  Lease lease = store.NewLease();
  std::vector<PageCopy> copies;
  store.Extend(lease, 0, store.paging().BeginOf(store.available()), &copies);
  store.Release(lease);
  if (store.has_moves()) store.MovesDone(store.TakeMoves().batch);
}

// Its last page is the text's, too.
TEST(HeldTextTest, ALeaseThatHasNotWrittenBehindAnIdleTextIsNotSetAside) {
  KvStore store(TestLayout({0}, 4), 8, PrefixCache::kOn);
  const auto owner = std::make_shared<const KvOwner>();
  const std::vector<int32_t> tokens = HeldTokens(11);
  Lease first = Compute(store, HeldTokens(10), kSinksOf8);
  store.LeaveIdle(first, tokens, 10, owner);
  Lease next = store.NewLease(kSinksOf8);
  ASSERT_EQ(store.Acquire(next, {.tokens = tokens, .owner = owner.get()}), 10);
  store.SetAside(next, 10);
  EXPECT_FALSE(next.is_set_aside());
  EXPECT_EQ(store.idle_texts(), 1);
  store.CheckAccounting();
}

TEST(HeldTextTest, APageThatAnotherLeaseHasWithoutANameIsNotHeld) {
  KvStore store(TestLayout({0}, 4), 8, PrefixCache::kOff);
  const std::vector<int32_t> tokens = HeldTokens(6);
  Lease lease = Compute(store, tokens);
  Lease fork = store.Fork(lease, 6);
  store.LeaveIdle(lease, tokens, 6, std::make_shared<const KvOwner>());
  EXPECT_EQ(store.idle_texts(), 0);
  store.Release(fork);
  store.CheckAccounting();
  EXPECT_EQ(store.free_pages(), 8);
}

// Twelve blocks, of which the tree knows eight.
TEST(HeldTextTest, WhereATextsOwnNamesFillTheTreeItIsHeldWithoutThem) {
  KvStore store(TestLayout({4}, 4), 4, PrefixCache::kOn);
  const auto owner = std::make_shared<const KvOwner>();
  const std::vector<int32_t> tokens = HeldTokens(49);
  Lease lease = Compute(store, HeldTokens(48));
  store.LeaveIdle(lease, tokens, 48, owner);
  Lease next = store.NewLease();
  EXPECT_EQ(store.Acquire(next, {.tokens = tokens, .owner = owner.get()}), 48);
  store.Release(next);
  store.CheckAccounting();
}

// Positions in front of 5 are not in its first page.
TEST(HeldTextTest, ATextIsForkedWhereAllThatIsSeenIsInItsPages) {
  KvStore store(TestLayout({6}, 4), 8, PrefixCache::kOn);
  const auto owner = std::make_shared<const KvOwner>();
  const std::vector<int32_t> tokens = HeldTokens(11);
  ASSERT_TRUE(store.BeginIdle(owner, {}, {5}, 10));
  const Lease above = store.NewLease();
  std::vector<TakenPage> taken;
  for (const int64_t block : {1, 2})
    ASSERT_TRUE(store.PlantIdle(*owner, above, block, 0, KvStore::Known::kByLease, &taken));
  ASSERT_TRUE(store.FinishIdle(*owner, above, tokens));
  const Lease lease = store.NewLease();
  EXPECT_EQ(store.KnownPrefix(lease, {.tokens = tokens, .owner = owner.get()}), 10);
  EXPECT_EQ(store.KnownPrefix(lease, {.tokens = HeldTokens(10), .owner = owner.get()}), 0) << "9 sees 4";
}

// The mark of the policy lies between the blocks.
TEST(HeldTextTest, AForkInFrontOfAPolicysFirstBlockIsNamedWithoutIt) {
  KvStore store(TestLayout({0}, 4), 8, PrefixCache::kOn);
  Lease lease = store.NewLease(kSinksOf8);
  store.Acquire(lease, {.tokens = HeldTokens(13)});
  std::vector<PageCopy> copies;
  store.Extend(lease, 0, 12, &copies);
  store.Seal(lease, HeldTokens(12), 12);
  const Lease fork = store.Fork(lease, 7);
  Lease plain = store.NewLease();
  ASSERT_EQ(store.Acquire(plain, {.tokens = HeldTokens(5)}), 4);
  EXPECT_EQ(fork.sealed, 4);
  EXPECT_EQ(fork.tip, plain.tip);
}

// Six blocks under policies may have names.
TEST(HeldTextTest, TheOldestTextUnderAPolicyGoesForAnotherBlockUnderOne) {
  KvStore store(TestLayout({0}, 4), 12, PrefixCache::kOn);
  const auto plain = std::make_shared<const KvOwner>();
  const auto endless = std::make_shared<const KvOwner>();
  Lease lease = Compute(store, HeldTokens(6));
  store.LeaveIdle(lease, HeldTokens(6), 6, plain);
  lease = Compute(store, HeldTokens(32, 100), kSinksOf8);
  store.LeaveIdle(lease, HeldTokens(32, 100), 32, endless);
  ASSERT_EQ(store.idle_texts(), 2);
  lease = Compute(store, HeldTokens(12, 200), kSinksOf8);
  EXPECT_EQ(store.idle_texts(), 1);
  EXPECT_EQ(store.KnownPrefix(store.NewLease(), {.tokens = HeldTokens(7), .owner = plain.get()}), 6);
}

// All names are of what is alive but those of the text that a page is put to.
TEST(HeldTextTest, ATextThatGoesForItsOwnNextNameIsNoMore) {
  KvStore store(TestLayout({4}, 4), 2, PrefixCache::kOn);
  Lease other = Compute(store, HeldTokens(12));
  const auto owner = std::make_shared<const KvOwner>();
  ASSERT_TRUE(store.BeginIdle(owner, {}, {0}, 4));
  std::vector<TakenPage> taken;
  EXPECT_FALSE(store.PlantIdle(*owner, store.NewLease(), 0, 0, KvStore::Known::kByLease, &taken));
  EXPECT_EQ(store.idle_texts(), 0);
  store.Release(other);
  store.CheckAccounting();
}

// What names give has room: two pages of three.
TEST(HeldTextTest, ATextThatThePoolHasNoRoomForIsNotForked) {
  const KvLayout layout = TestLayout({0}, 4);
  const auto tier = MakeTestTier({.host_pages = 8}, layout.page_bytes());
  KvStore store(layout, 6, PrefixCache::kOn, ChainedHash, tier.get());
  const auto owner = std::make_shared<const KvOwner>();
  const std::vector<int32_t> tokens = HeldTokens(11);
  Lease first = Compute(store, HeldTokens(10));
  store.LeaveIdle(first, tokens, 10, owner);
  TakeAll(store);
  Lease other = Compute(store, HeldTokens(16, 100));
  ASSERT_EQ(store.available(), 2);
  Lease next = store.NewLease();
  EXPECT_EQ(store.Acquire(next, {.tokens = tokens, .owner = owner.get()}), 8);
  store.Release(next);
  store.Release(other);
  EXPECT_EQ(store.Acquire(next, {.tokens = tokens, .owner = owner.get()}), 10);
  store.CheckAccounting();
}

// They were the last to go while their text was held.
TEST(HeldTextTest, ImagesOfATextThatIsNoMoreGoAsOthersDo) {
  const KvLayout layout = TestLayout({0}, 4);
  const auto tier = MakeTestTier({.host_pages = 4}, layout.page_bytes());
  KvStore store(layout, 6, PrefixCache::kOn, ChainedHash, tier.get());
  const std::vector<int32_t> tokens = HeldTokens(10);
  Lease lease = Compute(store, tokens, kSinksOf8);
  store.SetAside(lease, 10);
  ASSERT_TRUE(lease.is_set_aside());
  TakeAll(store);
  ASSERT_EQ(tier->host_bytes(), 3 * layout.page_bytes());
  store.Release(lease);
  EXPECT_EQ(store.KnownPrefix(lease, {.tokens = tokens}), 8);
  Lease other = Compute(store, HeldTokens(24, 100));
  store.Release(other);
  TakeAll(store);
  EXPECT_EQ(store.KnownPrefix(lease, {.tokens = tokens}), 0);
}

}  // namespace
}  // namespace tramontane
