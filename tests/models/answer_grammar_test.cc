// Answers with calls: heads by their ids, texts by their grammars.
#include "models/grammar/answer_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tests/support/fake_grammar.h"
#include "tests/support/pending_fake.h"
#include "tests/support/piece_tokenizer.h"

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

// Ids as pieces; kCall is a control token.
const PieceTokenizer& Pieces() {
  static const PieceTokenizer tokenizer([] {
    std::vector<std::string> pieces;
    for (int32_t id = 0; id < kVocab; ++id) pieces.push_back(id == kCall ? "<call>" : std::to_string(id));
    return pieces;
  }());
  return tokenizer;
}

AnswerGrammar Make(AnswerShape shape) { return {std::move(shape), Pieces(), {kEos}, kVocab}; }

// Heads a, ab: as names of which one begins the other.
AnswerShape TwoTools(bool repeat) {
  AnswerShape shape{.calls_repeat = repeat};
  shape.calls.push_back({{kCall, kA, kArgs}, std::make_shared<PendingFake>(Only(kX))});
  shape.calls.push_back({{kCall, kA, kB, kArgs}, std::make_shared<PendingFake>(Only(kY))});
  return shape;
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

TEST(AnswerGrammarTest, TheIdsOfAHeadTellTheBranch) {
  const AnswerGrammar grammar = Make(TwoTools(/*repeat=*/false));
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

TEST(AnswerGrammarTest, OnceItEndsBehindTheText) {
  const AnswerGrammar grammar = Make(TwoTools(/*repeat=*/false));
  const auto matcher = grammar.NewMatcher(TextStart::kOfMessage);
  Take(*matcher, {kCall, kA, kArgs, kX});
  EXPECT_THAT(Allowed(*matcher), ElementsAre(kEos));
  EXPECT_FALSE(matcher->Accept(kCall));
}

TEST(AnswerGrammarTest, RepeatedItGoesOnBehindAWholeTextAndNotBefore) {
  const AnswerGrammar grammar = Make(TwoTools(/*repeat=*/true));
  const auto matcher = grammar.NewMatcher(TextStart::kOfMessage);
  Take(*matcher, {kCall, kA, kArgs});
  EXPECT_THAT(Allowed(*matcher), ElementsAre(kX));
  EXPECT_FALSE(matcher->Accept(kCall)) << "in the middle of a text";
  Take(*matcher, {kX});
  EXPECT_THAT(Allowed(*matcher), ElementsAre(kEos, kCall));
  Take(*matcher, {kCall, kA, kB, kArgs, kY});
  EXPECT_THAT(Allowed(*matcher), ElementsAre(kEos, kCall));
}

// As a list behind [TOOL_CALLS], and as arguments behind a name.
TEST(AnswerGrammarTest, ATextStartsAMessageBehindControlTokensOnly) {
  const auto text =
      std::make_shared<FakeGrammar>([](const std::vector<int32_t>&) { return std::vector<int32_t>{kX}; });
  const auto start_of = [&](const std::vector<int32_t>& head, const std::vector<int32_t>& before) {
    AnswerShape shape{.begin = AnswerShape::Begin::kAnyText};
    shape.calls.push_back({head, std::make_shared<PendingFake>(text)});
    const AnswerGrammar grammar = Make(shape);
    const auto matcher = grammar.NewMatcher(TextStart::kOfMessage);
    for (const int32_t token : before) EXPECT_TRUE(matcher->StayFree(token));
    Take(*matcher, head);
    return text->starts().back();
  };
  EXPECT_EQ(start_of({kCall}, {}), TextStart::kOfMessage);
  EXPECT_EQ(start_of({kCall}, {kA}), TextStart::kWithinMessage);
  EXPECT_EQ(start_of({kCall, kA, kArgs}, {}), TextStart::kWithinMessage);
}

TEST(AnswerGrammarTest, AnyTextIsFreeUntilACall) {
  AnswerShape shape = TwoTools(/*repeat=*/true);
  shape.begin = AnswerShape::Begin::kAnyText;
  const AnswerGrammar grammar = Make(shape);
  const auto matcher = grammar.NewMatcher(TextStart::kOfMessage);
  for (const int32_t token : {kX, kEos, kArgs, kB}) {
    EXPECT_TRUE(matcher->IsFree());
    EXPECT_TRUE(matcher->StayFree(token)) << token;
    EXPECT_TRUE(matcher->Accept(token)) << token;
  }
  EXPECT_FALSE(matcher->StayFree(kCall));
  EXPECT_TRUE(matcher->IsFree()) << "it changes nothing";
  Take(*matcher, {kCall});
  EXPECT_FALSE(matcher->IsFree());
  EXPECT_THAT(Allowed(*matcher), ElementsAre(kA));
  Take(*matcher, {kA, kArgs, kX});
  EXPECT_FALSE(matcher->IsFree()) << "only another call, or the end";
  EXPECT_THAT(Allowed(*matcher), ElementsAre(kEos, kCall));
}

TEST(AnswerGrammarTest, ATextOrCallsAndNotBoth) {
  AnswerShape shape = TwoTools(/*repeat=*/true);
  shape.begin = AnswerShape::Begin::kTextOrCall;
  shape.text = Only(kY);
  const AnswerGrammar grammar = Make(shape);
  const auto calls = grammar.NewMatcher(TextStart::kOfMessage);
  EXPECT_THAT(Allowed(*calls), ElementsAre(kCall, kY));
  Take(*calls, {kCall, kA, kArgs, kX});
  EXPECT_THAT(Allowed(*calls), ElementsAre(kEos, kCall));
  const auto text = grammar.NewMatcher(TextStart::kOfMessage);
  Take(*text, {kY});
  EXPECT_THAT(Allowed(*text), ElementsAre(kEos));
  EXPECT_FALSE(text->Accept(kCall));
}

TEST(AnswerGrammarTest, AGrammarIsCompiledOnceTheNameLeavesNoOther) {
  AnswerShape shape = TwoTools(/*repeat=*/true);
  const auto late = std::make_shared<PendingFake>(Only(kX), PendingFake::kCompiledLater);
  shape.calls[0].text = late;
  const AnswerGrammar grammar = Make(shape);
  const auto matcher = grammar.NewMatcher(TextStart::kOfMessage);
  Take(*matcher, {kCall, kA, kB, kArgs, kY});
  EXPECT_FALSE(matcher->IsUnprepared());
  Take(*matcher, {kCall, kA});
  EXPECT_FALSE(matcher->IsUnprepared()) << "it may still be the other";
  Take(*matcher, {kArgs});
  EXPECT_TRUE(matcher->IsUnprepared());
  EXPECT_EQ(late->compiled(), 0);
  EXPECT_TRUE(matcher->Prepare({}).ok());
  EXPECT_FALSE(matcher->IsUnprepared());
  EXPECT_THAT(Allowed(*matcher), ElementsAre(kX));
  Take(*matcher, {kX, kCall, kA, kArgs});
  EXPECT_FALSE(matcher->IsUnprepared()) << "it is there now";
  EXPECT_EQ(late->compiled(), 1);
}

TEST(AnswerGrammarTest, WhatDoesNotCompileIsSaid) {
  AnswerShape shape = TwoTools(/*repeat=*/false);
  shape.calls[0].text = std::make_shared<PendingFake>(nullptr, PendingFake::kCompiledLater);
  const AnswerGrammar grammar = Make(shape);
  const auto matcher = grammar.NewMatcher(TextStart::kOfMessage);
  Take(*matcher, {kCall, kA, kArgs});
  EXPECT_EQ(matcher->Prepare({}).code(), StatusCode::kInvalidArgument);
}

TEST(AnswerGrammarTest, StoppedWorkAllowsNothing) {
  const auto costly = std::make_shared<FakeGrammar>(
      [](const std::vector<int32_t>& output) { return std::vector<int32_t>{output.empty() ? kX : kEos}; },
      [](const std::vector<int32_t>&) { return int64_t{100}; });
  const AnswerGrammar grammar =
      Make({.calls = {{{kCall}, std::make_shared<PendingFake>(costly)}}, .calls_repeat = true});
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
