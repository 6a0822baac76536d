#include "server/base/held_bytes.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tramontane {
namespace {

// What a client gets that takes one byte after the other.
int64_t Greedy(HeldBytes& held) {
  while (held.TrySet(held.bytes() + 1)) {
  }
  return held.bytes();
}

TEST(ByteBudget, AClientHasAtMostHalfWhileAnotherHoldsSomething) {
  ByteBudget budget(1000);
  HeldBytes other(budget, "other");
  ASSERT_TRUE(other.TrySet(1));
  HeldBytes greedy(budget, "greedy"), greedy_too(budget, "greedy");
  EXPECT_EQ(Greedy(greedy), 500);
  EXPECT_FALSE(greedy_too.TrySet(1)) << "what a client holds in many places is one share";
  EXPECT_TRUE(other.TrySet(400));
  EXPECT_EQ(budget.bytes(), 900);
}

TEST(ByteBudget, OneThatComesFindsRoomBesideAnyNumberOfGreedyOnes) {
  ByteBudget budget(100'000);
  std::vector<HeldBytes> holders;
  for (int i = 0; i < 4; ++i) {
    HeldBytes& held = holders.emplace_back(HeldBytes(budget, std::to_string(i)));
    EXPECT_GT(Greedy(held), 100) << i;
  }
  EXPECT_LE(budget.bytes(), budget.max_bytes());
}

TEST(ByteBudget, OneThatIsAloneHasSevenEighthsAndWhatIsNobodysAll) {
  ByteBudget budget(1000);
  {
    HeldBytes alone(budget, "alone");
    EXPECT_EQ(Greedy(alone), 875);
    EXPECT_TRUE(alone.TrySet(10)) << "less is always granted";
  }
  EXPECT_EQ(budget.bytes(), 0);
  HeldBytes nobodys(budget);
  EXPECT_EQ(Greedy(nobodys), 1000);
}

TEST(ByteBudget, AShareGoesWithItsBytesAndIsForgottenWithTheLastOfThem) {
  ByteBudget budget(1000);
  HeldBytes other(budget, "other");
  other.Set(1);
  std::optional<HeldBytes> first(HeldBytes(budget, "client"));
  ASSERT_TRUE(first->TrySet(500));
  HeldBytes part = first->Split(200);
  HeldBytes moved = std::move(part);
  HeldBytes again(budget, "client");
  EXPECT_FALSE(again.TrySet(1));
  first.reset();
  EXPECT_TRUE(again.TrySet(300));
  EXPECT_FALSE(again.TrySet(301)) << "what was split off and moved is held";
  moved.Set(0);
  EXPECT_TRUE(again.TrySet(500));
}

}  // namespace
}  // namespace tramontane
