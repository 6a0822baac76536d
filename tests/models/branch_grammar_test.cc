// Branches of an output: heads by their ids, texts by their grammars.
#include "models/grammar/branch_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tests/support/fake_grammar.h"

namespace tramontane {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kVocab = 40;
constexpr int32_t kEos = 2, kCall = 9, kArgs = 32;
constexpr int32_t kA = 11, kB = 12, kX = 35, kY = 36;

// `token`, then the end.
std::shared_ptr<const Grammar> Only(int32_t token) {
  return std::make_shared<FakeGrammar>([token](const std::vector<int32_t>& output) {
    return std::vector<int32_t>{output.empty() ? token : kEos};
  });
}

// Heads a, ab: as names of which one begins the other.
BranchGrammar TwoTools(Branches branching) {
  std::vector<GrammarBranch> branches;
  branches.push_back({{kCall, kA, kArgs}, Only(kX)});
  branches.push_back({{kCall, kA, kB, kArgs}, Only(kY)});
  return {std::move(branches), branching, {kEos}, kVocab};
}

std::vector<int32_t> Allowed(GrammarMatcher& matcher) {
  std::vector<uint32_t> mask(MaskWords(kVocab), ~0u);
  matcher.FillMask(mask);
  std::vector<int32_t> allowed;
  for (int32_t token = 0; token < kVocab; ++token) {
    if (MaskAllows(mask, token)) allowed.push_back(token);
  }
  return allowed;
}

void Take(GrammarMatcher& matcher, const std::vector<int32_t>& tokens) {
  for (const int32_t token : tokens) EXPECT_TRUE(matcher.Accept(token)) << token;
}

TEST(BranchGrammarTest, TheIdsOfAHeadTellTheBranch) {
  const BranchGrammar grammar = TwoTools(Branches::kOnce);
  const auto matcher = grammar.NewMatcher(TextStart::kOfMessage);
  EXPECT_THAT(Allowed(*matcher), ElementsAre(kCall));
  Take(*matcher, {kCall, kA});
  EXPECT_THAT(Allowed(*matcher), ElementsAre(kB, kArgs));
  EXPECT_FALSE(matcher->Accept(kX)) << "it changes nothing";
  Take(*matcher, {kB});
  EXPECT_THAT(Allowed(*matcher), ElementsAre(kArgs));
  Take(*matcher, {kArgs});
  EXPECT_THAT(Allowed(*matcher), ElementsAre(kY));

  const auto other = grammar.NewMatcher(TextStart::kOfMessage);
  Take(*other, {kCall, kA, kArgs});
  EXPECT_THAT(Allowed(*other), ElementsAre(kX));
}

TEST(BranchGrammarTest, OnceItEndsBehindTheText) {
  const BranchGrammar grammar = TwoTools(Branches::kOnce);
  const auto matcher = grammar.NewMatcher(TextStart::kOfMessage);
  Take(*matcher, {kCall, kA, kArgs, kX});
  EXPECT_THAT(Allowed(*matcher), ElementsAre(kEos));
  EXPECT_FALSE(matcher->Accept(kCall));
}

TEST(BranchGrammarTest, RepeatedItGoesOnBehindAWholeTextAndNotBefore) {
  const BranchGrammar grammar = TwoTools(Branches::kRepeat);
  const auto matcher = grammar.NewMatcher(TextStart::kOfMessage);
  Take(*matcher, {kCall, kA, kArgs});
  EXPECT_THAT(Allowed(*matcher), ElementsAre(kX));
  EXPECT_FALSE(matcher->Accept(kCall)) << "in the middle of a text";
  Take(*matcher, {kX});
  EXPECT_THAT(Allowed(*matcher), ElementsAre(kEos, kCall));
  Take(*matcher, {kCall, kA, kB, kArgs, kY});
  EXPECT_THAT(Allowed(*matcher), ElementsAre(kEos, kCall));
}

TEST(BranchGrammarTest, TextsBehindHeadsAreWithinAMessage) {
  const auto text =
      std::make_shared<FakeGrammar>([](const std::vector<int32_t>&) { return std::vector<int32_t>{kX}; });
  const BranchGrammar grammar({{{kCall}, text}}, Branches::kOnce, {kEos}, kVocab);
  Take(*grammar.NewMatcher(TextStart::kOfMessage), {kCall});
  EXPECT_THAT(text->starts(), ElementsAre(TextStart::kWithinMessage));
}

TEST(BranchGrammarTest, StoppedWorkAllowsNothing) {
  const auto costly = std::make_shared<FakeGrammar>(
      [](const std::vector<int32_t>& output) { return std::vector<int32_t>{output.empty() ? kX : kEos}; },
      [](const std::vector<int32_t>&) { return int64_t{100}; });
  const BranchGrammar grammar({{{kCall}, costly}}, Branches::kRepeat, {kEos}, kVocab);
  const auto matcher = grammar.NewMatcher(TextStart::kOfMessage);
  Take(*matcher, {kCall, kX});
  GrammarWork work{.most_ns = 10};
  std::vector<uint32_t> mask(MaskWords(kVocab));
  matcher->FillMask(mask, work);
  EXPECT_TRUE(work.stopped);
  EXPECT_THAT(mask, ElementsAre(0u, 0u));
  GrammarWork again{.most_ns = 10};
  EXPECT_FALSE(matcher->Accept(kCall, again));
  EXPECT_TRUE(again.stopped);
}

}  // namespace
}  // namespace tramontane
