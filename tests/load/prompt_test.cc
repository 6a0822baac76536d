// The ids of prompts: of the length asked for, within the range, and alike exactly where that is asked for.
#include "bench/load/prompt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace tramontane::load {
namespace {

using Ids = std::vector<int32_t>;

ScheduledRequest Plain(int64_t index, int32_t tokens) {
  ScheduledRequest request;
  request.plan.index = index;
  request.plan.input_tokens = tokens;
  request.prompt.own = index;
  return request;
}

size_t CommonBegin(const Ids& a, const Ids& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

TEST(PromptTest, IdsLieInTheRangeAndAreAsManyAsAsked) {
  const PromptWriter writer({1300, 2000}, 7);
  std::set<int32_t> seen;
  for (const int32_t tokens : {1, 2, 5, 6, 7, 1000, 20'000}) {
    const Ids ids = writer.Ids(Plain(3, tokens));
    EXPECT_EQ(ids.size(), static_cast<size_t>(tokens));
    seen.insert(ids.begin(), ids.end());
  }
  EXPECT_EQ(*seen.begin(), 1300);
  EXPECT_EQ(*seen.rbegin(), 1999);
}

TEST(PromptTest, PromptsOfARunDifferInTheirFirstIds) {
  for (const IdRange range : {IdRange{1300, 2000}, IdRange{5, 7}}) {
    const PromptWriter writer(range, 7);
    std::set<Ids> begins;
    for (int64_t i = 0; i < 20'000; ++i) begins.insert(writer.Ids(Plain(i, 40)));
    EXPECT_EQ(begins.size(), 20'000u);
  }
  const PromptWriter writer({1300, 2000}, 7);
  std::set<Ids> begins;
  for (int64_t i = 0; i < 20'000; ++i) begins.insert(writer.Ids(Plain(i, 4)));
  EXPECT_EQ(begins.size(), 20'000u);
}

TEST(PromptTest, RunsWithAnotherNonceShareNothing) {
  size_t most = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    const Ids one = PromptWriter({1300, 2000}, 7).Ids(Plain(i, 64));
    const Ids two = PromptWriter({1300, 2000}, 8).Ids(Plain(i, 64));
    most = std::max(most, CommonBegin(one, two));
  }
  EXPECT_LT(most, 6u);  // shorter than any page of a cache
  EXPECT_EQ(PromptWriter({1300, 2000}, 7).Ids(Plain(4, 64)), PromptWriter({1300, 2000}, 7).Ids(Plain(4, 64)));
}

TEST(PromptTest, WhatIsSharedIsSharedAndNothingElse) {
  const PromptWriter writer({1300, 2000}, 7);
  ScheduledRequest one = Plain(0, 150), two = Plain(1, 150), other = Plain(2, 150);
  one.prompt.prefix = two.prompt.prefix = 1;
  other.prompt.prefix = 2;
  one.prompt.prefix_tokens = two.prompt.prefix_tokens = other.prompt.prefix_tokens = 100;
  EXPECT_EQ(CommonBegin(writer.Ids(one), writer.Ids(two)), 100u);
  EXPECT_LT(CommonBegin(writer.Ids(one), writer.Ids(other)), 6u);
}

TEST(PromptTest, ALaterTurnBeginsWithTheOneBefore) {
  const PromptWriter writer({1300, 2000}, 7);
  ScheduledRequest first = Plain(0, 50), second = Plain(40, 90);
  first.prompt.own = second.prompt.own = -1;
  EXPECT_EQ(CommonBegin(writer.Ids(first), writer.Ids(second)), 50u);
  EXPECT_LT(CommonBegin(writer.Ids(first), writer.Ids(Plain(0, 50))), 6u);  // no single request is alike
}

TEST(PromptTest, BlocksOfATraceAreTheSameIdsWhereverTheyStand) {
  const PromptWriter writer({1300, 2000}, 7);
  ScheduledRequest one = Plain(0, 1100), two = Plain(1, 1300);
  one.prompt.blocks = {46, 47, 48};
  two.prompt.blocks = {46, 47, 99};
  one.prompt.block_tokens = two.prompt.block_tokens = 512;
  const Ids a = writer.Ids(one), b = writer.Ids(two);
  EXPECT_EQ(a.size(), 1100u);
  EXPECT_EQ(b.size(), 1300u);
  EXPECT_GE(CommonBegin(a, b), 1024u);
  EXPECT_LT(CommonBegin(a, b), 1030u);
}

}  // namespace
}  // namespace tramontane::load
