#include "engine/kv/known_pages.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "tests/engine/fake_serving.h"
#include "tests/support/test_tier.h"

namespace tramontane {
namespace {

// Blocks of four ids in a group without a window and one of 8.
class KnownPagesTest : public testing::Test {
 protected:
  // `host_pages`: of a tier; 0: there is none.
  explicit KnownPagesTest(int64_t pages = 2, int64_t host_pages = 0)
      : tier_(MakeTestTier({.host_pages = host_pages}, layout_.page_bytes())),
        pages_(layout_, pages, tree_, tier_.get()) {}

  PrefixTree::Node PinBlock(int32_t id) {
    const std::array ids = {id, id, id, id};
    const auto node = tree_.FindOrInsert(PrefixTree::kRoot, tree_.HashBelow(PrefixTree::kRoot, ids), ids);
    tree_.Pin(node);
    return node;
  }
  PageId TakeNamed(PrefixTree::Node node, size_t group) {
    const PageId page = pages_.Take(group);
    pages_.Name(page, node);
    return page;
  }
  EvictionRank RankOnceDropped(PageId page, EvictionRank rank) {
    pages_.Share(page);
    pages_.Drop(page, rank);
    return pages_.pool().rank(page);
  }

  const KvLayout layout_ = TestLayout({0, 8}, 4);
  PrefixTree tree_{8, 4, 4, ChainedHash};
  const std::unique_ptr<KvTier> tier_;
  KnownPages pages_;
};

// Whatever else is there of its block, and whoever lets go of it.
TEST_F(KnownPagesTest, APageThatIsPromisedIsNotUseless) {
  const PrefixTree::Node node = PinBlock(1);
  const PageId full = TakeNamed(node, 0);
  const PageId windowed = TakeNamed(node, 1);
  pages_.Promise(node, 1);
  pages_.Drop(full, EvictionRank::kOthers);
  pages_.Drop(windowed, EvictionRank::kOthers);
  EXPECT_EQ(pages_.Take(0), full);
  EXPECT_EQ(pages_.pool().rank(windowed), EvictionRank::kOthers);
  EXPECT_EQ(RankOnceDropped(windowed, EvictionRank::kPassed), EvictionRank::kOthers);
  EXPECT_TRUE(pages_.IsShared(windowed));
  EXPECT_FALSE(pages_.has_broken_promise());
  pages_.EndPromise(node, 1);
  EXPECT_EQ(RankOnceDropped(windowed, EvictionRank::kPassed), EvictionRank::kUseless);
  pages_.CheckAccounting();
}

TEST_F(KnownPagesTest, APageWhoseHoldEndsGoesAsOthersDo) {
  const PageId page = TakeNamed(PinBlock(1), 0);
  pages_.Drop(page, EvictionRank::kSetAside);
  EXPECT_EQ(pages_.pool().rank(page), EvictionRank::kSetAside);
  pages_.EndHold(page);
  EXPECT_EQ(pages_.pool().rank(page), EvictionRank::kOthers);
}

TEST_F(KnownPagesTest, APageThatIsTakenAnewIsPreferredNoMore) {
  const PageId page = pages_.Take(0);
  pages_.Prefer(page, true);
  pages_.Drop(page, EvictionRank::kOthers);
  ASSERT_EQ(TakeNamed(PinBlock(1), 0), page);
  pages_.Drop(page, EvictionRank::kOthers);
  EXPECT_EQ(pages_.pool().rank(page), EvictionRank::kOthers);
}

// ---- with a tier ----------------------------------------------------------------------------------

class KnownPagesInATier : public KnownPagesTest {
 protected:
  KnownPagesInATier() : KnownPagesTest(3, 1) {}

  // The next page to go leaves an image.
  PageId Evict(size_t group) {
    const PageId page = pages_.Take(group);
    pages_.tier()->BatchDone(pages_.TakeMoves().batch);
    return page;
  }
};

// An image that is gone for others takes the block's other pages with it.
TEST_F(KnownPagesInATier, APageWhosePartnersImageIsLostIsUseless) {
  const PrefixTree::Node node = PinBlock(1);
  const PageId full = TakeNamed(node, 0);
  const PageId windowed = TakeNamed(node, 1);
  const PageId other = TakeNamed(PinBlock(2), 0);
  pages_.Drop(full, EvictionRank::kOthers);
  pages_.Drop(other, EvictionRank::kOthers);
  pages_.Drop(windowed, EvictionRank::kOthers);
  ASSERT_EQ(Evict(0), full);
  EXPECT_EQ(pages_.pool().rank(windowed), EvictionRank::kOthers) << "its partner is on the host";
  ASSERT_EQ(Evict(0), other);
  EXPECT_EQ(pages_.pool().rank(windowed), EvictionRank::kUseless);
}

TEST_F(KnownPagesInATier, AnImageOfATextThatIsSetAsideStaysWhereOthersWantItsPlace) {
  const PrefixTree::Node set_aside = PinBlock(1);
  const PrefixTree::Node other = PinBlock(2);
  const PageId first = TakeNamed(set_aside, 0);
  pages_.Drop(first, EvictionRank::kSetAside);
  const PageId second = pages_.Take(0);
  const PageId third = pages_.Take(0);
  ASSERT_EQ(Evict(0), first);
  pages_.Name(second, other);
  pages_.Drop(second, EvictionRank::kOthers);
  ASSERT_EQ(Evict(0), second);
  EXPECT_TRUE(pages_.Knows(set_aside, 0, KnownPages::From::kHost));
  EXPECT_FALSE(pages_.Knows(other, 0, KnownPages::From::kHost));
  pages_.Drop(third, EvictionRank::kOthers);
}

TEST_F(KnownPagesInATier, APageThatIsBroughtBackIsPreferredWhereItsLeasePrefersIt) {
  const PrefixTree::Node node = PinBlock(1);
  for (const bool prefers : {true, false}) {
    if (!prefers) pages_.ForgetImage(node, 0);
    const PageId page = prefers ? TakeNamed(node, 0) : pages_.page(node, 0);
    if (prefers) pages_.Drop(page, EvictionRank::kOthers);
    std::vector<PageId> others;
    for (int i = 0; i < 3; ++i) others.push_back(Evict(0));
    ASSERT_EQ(pages_.page(node, 0), kNoPage);
    for (const PageId other : others) pages_.Drop(other, EvictionRank::kOthers);
    std::vector<PageId> list;
    pages_.Lease({{node, 0, &list}}, prefers);
    pages_.Drop(list[0], EvictionRank::kOthers);
    EXPECT_EQ(pages_.pool().rank(list[0]), prefers ? EvictionRank::kPreferred : EvictionRank::kOthers);
    pages_.tier()->BatchDone(pages_.TakeMoves().batch);
  }
}

}  // namespace
}  // namespace tramontane
