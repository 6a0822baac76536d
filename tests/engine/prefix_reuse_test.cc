// What requests gain by those before them, and what they must never get from them.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/request/step_bounds.h"
#include "tests/support/in_process_engine.h"

namespace tramontane {
namespace {

// Pages of 4 tokens, steps of 16, as SmallLimits says.
std::unique_ptr<StreamReader> Ask(SteppedEngine& test, const Request& request) {
  auto reader = test.Submit(request);
  EXPECT_TRUE(reader->refused().ok()) << reader->refused();
  test.RunToEnd({reader.get()});
  return reader;
}

int64_t CachedTokens(const StreamReader& reader) { return reader.choice().end().usage.cached_tokens; }

std::vector<int32_t> IdsWithoutCache(const Request& request, const std::vector<int32_t>& windows) {
  EngineLimits limits = SmallLimits(64);
  limits.prefix_cache = false;
  SteppedEngine test(limits, windows);
  return Ask(test, request)->choice().ids;
}

class PrefixReuse : public testing::TestWithParam<std::vector<int32_t>> {};  // windows
INSTANTIATE_TEST_SUITE_P(Windows, PrefixReuse,
                         testing::Values(std::vector<int32_t>{0}, std::vector<int32_t>{16, 0},
                                         std::vector<int32_t>{6}),
                         [](const auto& info) { return std::to_string(info.index); });

TEST_P(PrefixReuse, ASecondTurnComputesOnlyWhatIsNew) {
  SteppedEngine test(SmallLimits(64), GetParam());
  const Request first = MakeRequest("first", 21, 6);
  const auto answer = Ask(test, first);
  EXPECT_EQ(CachedTokens(*answer), 0);
  Request second = first;
  second.id = "second";
  second.prompt.insert(second.prompt.end(), answer->choice().ids.begin(), answer->choice().ids.end());
  second.prompt.insert(second.prompt.end(), {9, 10, 11});
  const int64_t computed = test.engine().Load().prompt_tokens;
  const auto next = Ask(test, second);
  // 26 positions of the first turn were computed: its last token was drawn and not fed back.
  EXPECT_EQ(CachedTokens(*next), 24);
  EXPECT_EQ(next->started()[0].cached_tokens, 24);
  EXPECT_EQ(test.engine().Load().prompt_tokens - computed, 30 - 24);
  EXPECT_EQ(next->choice().ids, IdsWithoutCache(second, GetParam()));
  EXPECT_EQ(test.engine().Load().prefix_queries, 21 + 30);
  EXPECT_EQ(test.engine().Load().prefix_hits, 24);
}

// The pool could hold no more than a part of the long text's blocks, if each had a page.
TEST(PrefixReuse, ALongTextUnderAWindowTakesNoNamesFromOthers) {
  EngineLimits limits = SmallLimits(60);
  limits.context = 1000;
  SteppedEngine test(limits, {16});
  Request known = MakeRequest("known", 101, 2, 1);
  Ask(test, known);
  EXPECT_EQ(CachedTokens(*Ask(test, known)), 100);
  Ask(test, MakeRequest("long", 900, 2, 2));
  EXPECT_EQ(CachedTokens(*Ask(test, known)), 100);
}

// The engine thread hashes what a text becomes, once a block; not what it was given, whoever looks for it.
TEST(PrefixReuse, ABlockIsHashedOnce) {
  SteppedEngine test(SmallLimits(64));
  const Request request = MakeRequest("first", 41, 20);
  Ask(test, request);
  EXPECT_EQ(test.engine().Load().hashed_blocks, 5)
      << "60 tokens were fed in all, 40 of them in blocks asked for";
  Ask(test, request);
  EXPECT_EQ(test.engine().Load().hashed_blocks, 10);
}

// However many ask at once for what is known, and however long it is.
TEST(PrefixReuse, AStepFindsAPartOfWhatIsKnown) {
  constexpr int64_t kTexts = 40, kTokens = 2'000;
  constexpr int64_t kPage = 4, kMost = kPage * kBlocksWalked.most;
  static_assert(kTexts * kTokens > 2 * kMost);
  EngineLimits limits = SmallLimits(4'000);
  limits.context = kTokens + 10;
  limits.max_step_tokens = 4'000;
  limits.max_sequences = kTexts + 1;
  limits.lane_policy = LanePolicy::kDecodeFirst;
  SteppedEngine test(limits);
  const Request known = MakeRequest("known", kTokens + 1, 2);
  Ask(test, known);
  std::vector<std::unique_ptr<StreamReader>> asked;
  asked.push_back(test.Submit(MakeRequest("until all have been made ready", 5, 10, 1)));
  test.Step();
  for (int64_t i = 0; i < kTexts; ++i) asked.push_back(test.Submit(known));
  int64_t steps = 0;
  for (int64_t found = 0; found < kTexts * kTokens; ++steps) {
    test.Step();
    const int64_t before = std::exchange(found, test.engine().Load().prefix_hits);
    EXPECT_LT(found - before, kMost + kTokens);
    ASSERT_LT(steps, 100) << "has stopped to begin them";
  }
  EXPECT_GT(steps, 2);
  for (const auto& reader : asked) test.RunToEnd({reader.get()});
}

// Others come and go until the pool was filled many times over.
TEST_P(PrefixReuse, PagesOfASessionStayWhileThoseOfOthersGo) {
  for (const bool is_session : {false, true}) {
    SteppedEngine test(SmallLimits(48), GetParam());
    Request first = MakeRequest("first", 21, 6);
    first.prefers_cache = is_session;
    const auto answer = Ask(test, first);
    for (uint32_t other = 1; other < 40; ++other) {
      Ask(test, MakeRequest("other" + std::to_string(other), 30, 5, other));
    }
    Request second = first;
    second.prompt.insert(second.prompt.end(), answer->choice().ids.begin(), answer->choice().ids.end());
    EXPECT_EQ(CachedTokens(*Ask(test, second)), is_session ? 24 : 0);
  }
}

// Of more sessions than half of the pool holds, those used longest ago go; and nobody waits for any.
TEST_P(PrefixReuse, SessionsTakeHalfOfThePoolFromOthers) {
  SteppedEngine test(SmallLimits(96), GetParam());
  const auto session = [&](uint32_t number) {
    Request request = MakeRequest("session" + std::to_string(number), 21, 6, number);
    request.prefers_cache = true;
    return request;
  };
  constexpr uint32_t kSessions = 40;
  for (uint32_t number = 1; number <= kSessions; ++number) Ask(test, session(number));
  const Request other = MakeRequest("other", 30, 5, 1000);
  Ask(test, other);
  for (uint32_t number = 1; number <= 3; ++number) Ask(test, session(kSessions + number));
  EXPECT_GT(CachedTokens(*Ask(test, other)), 0) << "half of the pool is for all";
  EXPECT_GT(CachedTokens(*Ask(test, session(kSessions + 3))), 0);
  EXPECT_EQ(CachedTokens(*Ask(test, session(1))), 0);
}

TEST_P(PrefixReuse, TheSameQuestionAgainComputesLessThanAPage) {
  SteppedEngine test(SmallLimits(64), GetParam());
  Request request = MakeRequest("r", 21, 1);  // ends with the step that computes it
  Ask(test, request);
  const auto again = Ask(test, request);
  EXPECT_EQ(CachedTokens(*again), 20);
  EXPECT_EQ(again->choice().ids, IdsWithoutCache(request, GetParam()));
  request.prompt.pop_back();
  EXPECT_EQ(CachedTokens(*Ask(test, request)), 16) << "at least one token is computed";
}

// A prompt of which little is new does not wait for a place behind a long one.
TEST_P(PrefixReuse, APromptIsAsShortAsWhatIsNewOfIt) {
  EngineLimits limits = SmallLimits(64);
  limits.max_partial_prefills = 1;
  SteppedEngine test(limits, GetParam());
  const Request first = MakeRequest("first", 40, 1);
  Ask(test, first);
  const auto slow = test.Submit(MakeRequest("slow", 60, 1, /*salt=*/9));
  const auto again = test.Submit(first);
  test.Step();
  EXPECT_EQ(test.engine().Load().finished_requests, 2) << "beside the first chunk of the long one";
  test.RunToEnd({again.get(), slow.get()});
  EXPECT_EQ(again->choice().ids, IdsWithoutCache(first, GetParam()));
}

TEST_P(PrefixReuse, ChoicesOfOneRequestShareWhatWasFound) {
  SteppedEngine test(SmallLimits(64), GetParam());
  Request request = MakeRequest("r", 21, 5);
  request.choices = 3;
  request.sampling.temperature = 0.9f;
  request.sampling.seed = 7;
  Ask(test, request);
  const auto again = Ask(test, request);
  EXPECT_EQ(again->started()[0].cached_tokens, 20);
  EngineLimits off = SmallLimits(64);
  off.prefix_cache = false;
  SteppedEngine without(off, GetParam());
  const auto expected = Ask(without, request);
  for (int32_t c = 0; c < 3; ++c) EXPECT_EQ(again->choice(c).ids, expected->choice(c).ids);
}

TEST_P(PrefixReuse, OtherSaltsFindNothing) {
  SteppedEngine test(SmallLimits(64), GetParam());
  Request request = MakeRequest("r", 21, 1);
  request.cache_salt = "a";
  Ask(test, request);
  request.cache_salt = "b";
  EXPECT_EQ(CachedTokens(*Ask(test, request)), 0);
  request.cache_salt = "";
  EXPECT_EQ(CachedTokens(*Ask(test, request)), 0);
  request.cache_salt = "a";
  EXPECT_EQ(CachedTokens(*Ask(test, request)), 20);
}

TEST(PrefixReuseLimits, ASaltIsAtMost256Bytes) {
  SteppedEngine test(SmallLimits(64));
  Request request = MakeRequest("r", 5, 1);
  request.cache_salt = std::string(257, 'x');
  EXPECT_EQ(test.Submit(request)->refused().message(), "cache_salt has 257 bytes; at most 256 are allowed");
  request.cache_salt.pop_back();
  EXPECT_TRUE(test.Submit(request)->refused().ok());
}

TEST_P(PrefixReuse, ScoredPromptsAreComputedAndThenFound) {
  SteppedEngine test(SmallLimits(64), GetParam());
  Request request = MakeRequest("r", 21, 2);
  Ask(test, request);
  request.output.prompt_logprobs = 0;
  const auto scored = Ask(test, request);
  EXPECT_EQ(CachedTokens(*scored), 0) << "each position's logits are wanted";
  EXPECT_EQ(scored->started()[0].prompt_logprobs.size(), 20u);
  request.output.prompt_logprobs = -1;
  EXPECT_EQ(CachedTokens(*Ask(test, request)), 20);
}

// A prompt of several steps, so that some of its pages are known before the fault is.
TEST_P(PrefixReuse, WhatAFaultyRequestComputedIsNotFound) {
  SteppedEngine test(SmallLimits(64), GetParam());
  const Request request = MakeRequest("poisoned", 40, 4);
  test.runner().not_finite = [](const std::string&, int32_t, int64_t) { return true; };
  const auto poisoned = Ask(test, request);
  EXPECT_EQ(poisoned->status().code(), StatusCode::kInternal);
  EXPECT_EQ(test.engine().Load().cached_pages, 0);
  test.runner().not_finite = nullptr;
  const auto again = Ask(test, request);
  EXPECT_EQ(CachedTokens(*again), 0);
  EXPECT_EQ(again->choice().ids, IdsWithoutCache(request, GetParam()));
  EXPECT_EQ(CachedTokens(*Ask(test, request)), 36) << "what it computed is known again";
}

// One that finds what another one left, and fails, leaves nothing of it either.
TEST_P(PrefixReuse, WhatAFaultyRequestFoundIsNotFoundAgain) {
  SteppedEngine test(SmallLimits(64), GetParam());
  const Request request = MakeRequest("r", 40, 2);
  Ask(test, request);
  test.runner().not_finite = [](const std::string&, int32_t, int64_t) { return true; };
  EXPECT_EQ(CachedTokens(*Ask(test, request)), 36);
  test.runner().not_finite = nullptr;
  EXPECT_EQ(CachedTokens(*Ask(test, request)), 0);
}

TEST(PrefixReuseLimits, ACancelledPromptLeavesWhatItHadComputed) {
  SteppedEngine test(SmallLimits(64));
  const Request request = MakeRequest("r", 40, 4);
  auto reader = test.Submit(request);
  test.Step();
  test.Step();
  reader->stream().Cancel();
  test.RunToEnd({reader.get()});
  EXPECT_EQ(test.engine().Load().held_pages, 0);
  EXPECT_EQ(CachedTokens(*Ask(test, request)), 32);
}

TEST(PrefixReuseLimits, IsOffWhereItIsNotWanted) {
  EngineLimits limits = SmallLimits(64);
  limits.prefix_cache = false;
  SteppedEngine test(limits);
  const Request request = MakeRequest("r", 21, 2);
  Ask(test, request);
  EXPECT_EQ(CachedTokens(*Ask(test, request)), 0);
  EXPECT_EQ(test.engine().Load().cached_pages, 0);
  EXPECT_EQ(test.engine().Load().free_pages, 64);
}

}  // namespace
}  // namespace tramontane
