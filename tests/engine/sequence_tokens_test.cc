#include "engine/request/sequence_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace tramontane {
namespace {

std::vector<int32_t> AllOf(const SequenceTokens& tokens) {
  std::vector<int32_t> all;
  for (size_t i = 0; i < tokens.size(); ++i) all.push_back(tokens[i]);
  return all;
}

TEST(SequenceTokensTest, ChoicesShareThePromptItselfAndHaveTheirOwnOutput) {
  const std::vector<int32_t> prompt = {5, 6, 7, 8};
  SequenceTokens first(prompt);
  SequenceTokens second(prompt);
  first.push_back(1);
  second.push_back(2);
  second.push_back(3);
  EXPECT_EQ(AllOf(first), (std::vector<int32_t>{5, 6, 7, 8, 1}));
  EXPECT_EQ(AllOf(second), (std::vector<int32_t>{5, 6, 7, 8, 2, 3}));
  std::vector<int32_t> copy;
  EXPECT_EQ(TokenView(first).Piece(0, 4, &copy).data(), prompt.data());
  EXPECT_EQ(TokenView(second).Piece(1, 2, &copy).data(), prompt.data() + 1);
}

// Wherever the pieces meet, and whichever part is asked for or goes.
TEST(SequenceTokensTest, PiecesAndErasuresAreThoseOfOneList) {
  constexpr int64_t kTokens = 9;
  std::vector<int32_t> expected(kTokens);
  std::iota(expected.begin(), expected.end(), 10);
  for (int64_t shared = 0; shared <= kTokens; ++shared) {
    const std::vector<int32_t> prompt(expected.begin(), expected.begin() + shared);
    SequenceTokens tokens(prompt);
    for (int64_t i = shared; i < kTokens; ++i) tokens.push_back(expected[static_cast<size_t>(i)]);
    for (int64_t begin = 0; begin <= kTokens; ++begin) {
      for (int64_t count = 0; begin + count <= kTokens; ++count) {
        const std::span<const int32_t> part =
            std::span(expected).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
        std::vector<int32_t> copy;
        EXPECT_TRUE(std::ranges::equal(TokenView(tokens).Piece(begin, count, &copy), part));
        const TokenView first = TokenView(tokens).First(begin + count);
        ASSERT_EQ(first.size(), begin + count);
        EXPECT_TRUE(std::ranges::equal(first.Piece(begin, count, &copy), part));

        SequenceTokens left(tokens);
        left.Erase(begin, count);
        std::vector<int32_t> expected_left = expected;
        expected_left.erase(expected_left.begin() + begin, expected_left.begin() + begin + count);
        EXPECT_EQ(AllOf(left), expected_left) << shared << " " << begin << " " << count;
        left.push_back(99);
        EXPECT_EQ(left[left.size() - 1], 99);
      }
    }
  }
}

}  // namespace
}  // namespace tramontane
