// Texts that go on when their context is full. The fake model reads every slot that a row sees by the
// definition (ViewAt); on the CPU each policy is held against prompts that spell out what is left.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/in_process_engine.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

ContextPolicy Policy(ContextPolicyType type, int64_t n_ctx, int64_t n_keep, int64_t n_discard = 0) {
  return {.type = type, .n_ctx = n_ctx, .n_keep = n_keep, .n_discard = n_discard};
}

Request EndlessRequest(const ContextPolicy& policy, int64_t prompt_tokens, int64_t max_tokens,
                       uint32_t salt = 0) {
  Request request = MakeRequest("endless", prompt_tokens, max_tokens, salt);
  request.context_policy = policy;
  return request;
}

std::unique_ptr<StreamReader> Ask(EngineUnderTest& test, const Request& request) {
  auto reader = test.Submit(request);
  EXPECT_TRUE(reader->refused().ok()) << reader->refused();
  if (reader->refused().ok()) test.RunToEnd({reader.get()});
  return reader;
}

std::string RefusalOf(EngineUnderTest& test, const Request& request) {
  return test.Submit(request)->refused().message();
}

// ---- the pool -----------------------------------------------------------------------------------

const std::vector<ContextPolicy>& Policies() {
  static const std::vector<ContextPolicy> policies = {
      Policy(ContextPolicyType::kSinks, 24, 4),          Policy(ContextPolicyType::kSinks, 17, 0),
      Policy(ContextPolicyType::kSinks, 19, 6),          Policy(ContextPolicyType::kShift, 24, 4, 1),
      Policy(ContextPolicyType::kShift, 24, 6, 18),      Policy(ContextPolicyType::kShift, 21, 5, 3),
      Policy(ContextPolicyType::kReevaluate, 24, 4, 10), Policy(ContextPolicyType::kReevaluate, 13, 0, 13),
  };
  return policies;
}

class Endless : public testing::TestWithParam<std::vector<int32_t>> {};  // windows
INSTANTIATE_TEST_SUITE_P(Windows, Endless,
                         testing::Values(std::vector<int32_t>{0}, std::vector<int32_t>{16, 0},
                                         std::vector<int32_t>{6}, std::vector<int32_t>{0, 40}),
                         [](const auto& info) { return std::to_string(info.index); });

// The pool is far smaller than the text: pages come back while it grows, and no more are held than the plan
// of pages says.
TEST_P(Endless, ATextOfThousandsOfTokensHoldsAFewPages) {
  for (const ContextPolicy& policy : Policies()) {
    SCOPED_TRACE(std::string(ContextPolicyName(policy.type)) + " " + std::to_string(policy.n_ctx));
    SteppedEngine test(SmallLimits(64), GetParam());
    const bool by_masks = policy.type != ContextPolicyType::kReevaluate;
    const int64_t most = by_masks ? PagesUnderPolicy(test.engine().kv_layout(), policy, 4) : 64;
    auto reader = test.Submit(EndlessRequest(policy, 9, 2000));
    ASSERT_TRUE(reader->refused().ok()) << reader->refused();
    int64_t held = 0;
    while (!reader->done()) {
      test.Step();
      reader->Poll();
      held = std::max(held, test.engine().Load().held_pages);
    }
    EXPECT_EQ(reader->choice().ids.size(), 2000u);
    EXPECT_EQ(reader->choice().end().reason, FinishReason::kLength);
    EXPECT_LE(held, most);
    EXPECT_EQ(test.engine().Load().held_pages, 0);
    // The last row was the one at 2007, for the last token is not fed back.
    const int64_t discarded =
        policy.type == ContextPolicyType::kSinks ? 2008 - policy.n_ctx : ViewAt(policy, 2007).discarded;
    EXPECT_EQ(reader->choice().end().usage.discarded_tokens, discarded);
    EXPECT_EQ(test.engine().Load().discarded_tokens[static_cast<size_t>(policy.type)], discarded);
  }
}

// Whatever the windows, and without the prefix cache: a discard computes what comes behind its sinks.
TEST_P(Endless, ReevaluationComputesNoSinkTwice) {
  const ContextPolicy policy = Policy(ContextPolicyType::kReevaluate, 24, 6, 10);
  EngineLimits limits = SmallLimits(64);
  limits.prefix_cache = false;
  SteppedEngine test(limits, GetParam());
  const auto reader = Ask(test, EndlessRequest(policy, 9, 500));
  EXPECT_EQ(reader->choice().ids.size(), 500u);
  const int64_t discards = ViewAt(policy, 507).discarded / policy.n_discard;
  EXPECT_GT(discards, 40);
  EXPECT_EQ(test.engine().Load().prompt_tokens,
            9 + discards * (policy.n_ctx + 1 - policy.n_discard - policy.n_keep));
  EXPECT_EQ(test.engine().Load().held_pages, 0);
}

// What a row sees follows from its position, so neither chunks nor a pool that is short change a token.
TEST_P(Endless, ChunksPreemptionAndTheCacheChangeNoToken) {
  for (const ContextPolicy& policy : Policies()) {
    SCOPED_TRACE(std::string(ContextPolicyName(policy.type)) + " " + std::to_string(policy.n_ctx));
    EngineLimits calm = SmallLimits(300);
    calm.max_step_tokens = 64;
    calm.prefix_cache = false;
    SteppedEngine alone(calm, GetParam());
    SteppedEngine tight(SmallLimits(40), GetParam());
    std::vector<Request> requests;
    std::vector<std::unique_ptr<StreamReader>> readers;
    std::vector<StreamReader*> all;
    for (uint32_t salt = 0; salt < 6; ++salt) {
      Request& request = requests.emplace_back(EndlessRequest(policy, salt < 3 ? 45 : 8, 60, salt % 3));
      request.id += std::to_string(salt);
      readers.push_back(tight.Submit(request));
      ASSERT_TRUE(readers.back()->refused().ok()) << readers.back()->refused();
      all.push_back(readers.back().get());
    }
    tight.RunToEnd(all);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(readers[i]->choice().ids, Ask(alone, requests[i])->choice().ids) << i;
    }
  }
}

// Far behind its context, too: the pages of the next turn are those of the last one, and no token is another
// one for it.
TEST_P(Endless, ASecondTurnComputesOnlyWhatIsNew) {
  for (const ContextPolicy& policy : Policies()) {
    SCOPED_TRACE(std::string(ContextPolicyName(policy.type)) + " " + std::to_string(policy.n_ctx));
    SteppedEngine test(SmallLimits(200), GetParam());
    const Request first = EndlessRequest(policy, 50, 47);
    const auto answer = Ask(test, first);
    Request second = first;
    second.prompt.insert(second.prompt.end(), answer->choice().ids.begin(), answer->choice().ids.end());
    second.prompt.insert(second.prompt.end(), {9, 10, 11});
    const auto next = Ask(test, second);
    if (policy.type != ContextPolicyType::kReevaluate) {
      // 96 positions of the first turn were computed: its last token was drawn and not fed back.
      EXPECT_EQ(next->choice().end().usage.cached_tokens, 96);
    }
    EngineLimits calm = SmallLimits(200);
    calm.prefix_cache = false;
    SteppedEngine alone(calm, GetParam());
    EXPECT_EQ(next->choice().ids, Ask(alone, second)->choice().ids);
    // Under another policy its pages are of no use, but for those in front of where either changes a mask.
    ContextPolicy other = policy;
    ++other.n_keep;
    second.context_policy = other;
    if (CheckContextPolicy(other).ok()) {
      EXPECT_EQ(Ask(test, second)->choice().ids, Ask(alone, second)->choice().ids);
    }
  }
}

TEST_P(Endless, ChoicesOfOnePromptGoTheirOwnWays) {
  for (const ContextPolicy& policy : Policies()) {
    SteppedEngine test(SmallLimits(120), GetParam());
    Request request = EndlessRequest(policy, 30, 40);
    request.choices = 3;
    request.sampling.temperature = 0.9f;
    request.sampling.seed = 7;
    const auto together = Ask(test, request);
    ASSERT_NE(together->choice(0).ids, together->choice(1).ids);
    SteppedEngine again(SmallLimits(400), GetParam());
    const auto once_more = Ask(again, request);
    for (int32_t c = 0; c < 3; ++c) EXPECT_EQ(together->choice(c).ids, once_more->choice(c).ids) << c;
  }
}

TEST(EndlessTest, BelowTheContextNothingIsDifferentAndPagesAreShared) {
  for (const ContextPolicy& policy : Policies()) {
    SteppedEngine test(SmallLimits(120), {0});
    const Request plain = MakeRequest("plain", 9, 3);
    const auto first = Ask(test, plain);
    const auto second = Ask(test, EndlessRequest(policy, 9, 3));
    EXPECT_EQ(second->choice().ids, first->choice().ids);
    EXPECT_EQ(second->choice().end().usage.cached_tokens, 8);
    EXPECT_EQ(second->choice().end().usage.discarded_tokens, 0);
    EXPECT_FALSE(first->choice().end().usage.discarded_tokens.has_value());
  }
}

// ---- what is refused ----------------------------------------------------------------------------

TEST(EndlessTest, RefusalsNameFieldValueAndLimit) {
  EngineLimits limits = SmallLimits(300);
  limits.context = 100;
  SteppedEngine test(limits, {0});
  const auto refusal = [&](const ContextPolicy& policy, int64_t prompt = 5) {
    return RefusalOf(test, EndlessRequest(policy, prompt, 5));
  };
  EXPECT_EQ(refusal(Policy(ContextPolicyType::kSinks, 101, 4)),
            "context_policy.n_ctx is 101; it must be from 1 to 100");
  EXPECT_EQ(refusal(Policy(ContextPolicyType::kSinks, 8, 8)),
            "context_policy.n_keep is 8, allowed are 0 to 7");
  EXPECT_EQ(refusal(Policy(ContextPolicyType::kSinks, 8, 4, 1)),
            "context_policy.n_discard is 1; together with type sinks it must be unset: tokens go one by one");
  EXPECT_EQ(refusal(Policy(ContextPolicyType::kShift, 8, 4, 5)),
            "context_policy.n_discard is 5, allowed are 1 to 4");
  Request scored = EndlessRequest(Policy(ContextPolicyType::kReevaluate, 8, 4), 5, 5);
  scored.output.prompt_logprobs = 0;
  EXPECT_EQ(RefusalOf(test, scored),
            "output.prompt_logprobs is 0; together with context_policy.type reevaluate it must be unset, for "
            "positions change");
  Request open = EndlessRequest(Policy(ContextPolicyType::kShift, 8, 4), 8, 5);
  open.stopping.max_tokens.reset();
  EXPECT_EQ(
      RefusalOf(test, open),
      "stopping.max_tokens is not given, and a prompt of 8 tokens leaves nothing of context_policy.n_ctx, "
      "8, that it could default to");
  open.stopping.max_tokens = kMaxContext + 1;
  EXPECT_EQ(RefusalOf(test, open), "stopping.max_tokens is 67108865; it must be from 0 to 67108864");
  open.stopping.max_tokens = -1;
  EXPECT_EQ(RefusalOf(test, open), "stopping.max_tokens is -1; it must be from 0 to 67108864");
}

TEST(EndlessTest, AsManyTokensAsAContextMayHaveCanBeAskedForBehindAnyPrompt) {
  EngineLimits limits = SmallLimits(300);
  limits.context = 100;
  SteppedEngine test(limits, {0});
  test.runner().forced = [](const std::string&, int32_t, int64_t position) {
    return position < 40 ? 5 : SteppedEngine::kEos;
  };
  Request request = EndlessRequest(Policy(ContextPolicyType::kShift, 16, 4), 20, kMaxContext);
  request.stopping.ignore_eos = false;
  const auto reader = Ask(test, request);
  EXPECT_EQ(reader->choice().end().reason, FinishReason::kStop);
  EXPECT_EQ(reader->choice().ids.size(), 21u);
}

TEST(EndlessTest, ThePoolMustHoldWhatMovesOn) {
  EngineLimits limits = SmallLimits(10);  // 40 tokens
  limits.context = 40;
  SteppedEngine test(limits, {0});
  EXPECT_EQ(RefusalOf(test, EndlessRequest(Policy(ContextPolicyType::kSinks, 40, 4), 5, 100)),
            "context_policy.n_ctx is 40, which takes 12 pages while the text moves on; the pool has 10");
  EXPECT_EQ(Ask(test, EndlessRequest(Policy(ContextPolicyType::kSinks, 32, 4), 5, 100))->choice().ids.size(),
            100u);
}

TEST(EndlessTest, MaxTokensDefaultsToTheRestOfTheContextAndThePolicyToThatOfTheLimits) {
  EngineLimits limits = SmallLimits(300);
  limits.context_policy = {.type = ContextPolicyType::kShift, .n_ctx = 0, .n_keep = 4, .n_discard = 0};
  limits.context = 100;
  SteppedEngine test(limits, {0});
  Request request = MakeRequest("r", 10, 0);
  request.stopping.max_tokens.reset();
  EXPECT_EQ(Ask(test, request)->choice().ids.size(), 90u) << "n_ctx is the context";
  request.stopping.max_tokens = 150;
  const auto longer = Ask(test, request);
  EXPECT_EQ(longer->choice().end().usage.discarded_tokens, 160 - 1 - 100) << "n_discard is 1";
  request.context_policy = ContextPolicy();  // none, whatever the limits say
  EXPECT_EQ(RefusalOf(test, request),
            "stopping.max_tokens is 150 after a prompt of 10 tokens; the context holds 100 in all");
}

// ---- the model ----------------------------------------------------------------------------------

class EndlessOnTheCpu : public testing::Test {
 protected:
  // f32 pages: two ways to one number differ by rounding alone.
  std::unique_ptr<CpuEngine> Start(int32_t steps_in_flight = 1) {
    BackendEngine::Options options;
    options.kv_dtype = DType::kF32;
    options.limits = SmallLimits(400);
    options.limits.context = 64;
    options.limits.steps_in_flight = steps_in_flight;
    if (steps_in_flight > 1) options.delayed = DelayedBackend::Runs::kWhenWaitedFor;
    return std::make_unique<CpuEngine>(folder_.path(), options);
  }

  // The next token after a prompt, and its margin over the second.
  static std::pair<int32_t, float> Next(EngineUnderTest& test, const std::vector<int32_t>& prompt) {
    Request request = MakeRequest("fresh", 1, 1);
    request.prompt = prompt;
    request.output.logprobs = 2;
    const auto reader = Ask(test, request);
    const TokenInfo& info = reader->choice().logprobs.at(0);
    return {reader->choice().ids.at(0), info.top.at(0).logprob - info.top.at(1).logprob};
  }

  // Each token is that of a fresh prompt of the tokens left.
  static void ExpectFreshPrefills(EngineUnderTest& test, const Request& request, float least_margin) {
    const ContextPolicy& policy = *request.context_policy;
    const auto reader = Ask(test, request);
    std::vector<int32_t> all = request.prompt;
    int64_t compared = 0;
    for (const int32_t id : reader->choice().ids) {
      const ContextView view = ViewAt(policy, static_cast<int64_t>(all.size()) - 1);
      std::vector<int32_t> left(all.begin(), all.begin() + std::min<int64_t>(view.sink_len, all.size()));
      left.insert(left.end(), all.begin() + std::min<int64_t>(view.left, all.size()), all.end());
      const auto [next, margin] = Next(test, left);
      if (margin >= least_margin) {
        ASSERT_EQ(id, next) << "after " << all.size() << " tokens";
        ++compared;
      }
      all.push_back(id);
    }
    EXPECT_GT(compared, static_cast<int64_t>(reader->choice().ids.size()) / 2);
  }

  void WriteModel(int32_t layers, const std::vector<int32_t>& window) {
    TinyModel model;
    model.layers = layers;
    model.window = window;
    model.Randomise(3);
    model.WriteHuggingFace(folder_);
  }

  const TempFolder folder_;
};

TEST_F(EndlessOnTheCpu, ReevaluationIsAFreshPrefillOfTheTokensLeft) {
  WriteModel(2, {});
  const auto test = Start();
  for (const int64_t n_discard : {1, 7}) {
    const Request request = EndlessRequest(Policy(ContextPolicyType::kReevaluate, 20, 4, n_discard), 30, 40);
    ExpectFreshPrefills(*test, request, 0.0f);  // bit for bit
  }
}

// The keys of a first layer depend on their own token and its place alone: there a shift is a fresh prefill,
// but for how scores round when both turn.
TEST_F(EndlessOnTheCpu, AShiftOfOneLayerIsAFreshPrefillOfTheTokensLeft) {
  WriteModel(1, {});
  const auto test = Start();
  for (const int64_t n_discard : {1, 7}) {
    const Request request = EndlessRequest(Policy(ContextPolicyType::kShift, 20, 4, n_discard), 30, 40);
    ExpectFreshPrefills(*test, request, 1e-4f);
  }
}

TEST_F(EndlessOnTheCpu, AWindowHoldsOverTheTokensLeft) {
  WriteModel(1, {9});
  const auto test = Start();
  for (const int64_t n_discard : {1, 14}) {  // 14: windows meet the sinks again behind each discard
    const Request request = EndlessRequest(Policy(ContextPolicyType::kShift, 20, 4, n_discard), 30, 40);
    ExpectFreshPrefills(*test, request, 1e-4f);
  }
}

// What is cached under one policy is nothing to another, and what is found is what would be computed.
TEST_F(EndlessOnTheCpu, PagesThatAreFoundChangeNoBit) {
  WriteModel(2, {12, 0});
  const auto cached = Start();
  for (const ContextPolicy& policy : Policies()) {
    Request request = EndlessRequest(policy, 60, 20);
    request.output.logprobs = 1;
    for (int turn = 0; turn < 3; ++turn) {
      const auto found = Ask(*cached, request);
      const auto computed = Ask(*Start(), request);
      EXPECT_EQ(found->choice().ids, computed->choice().ids) << ContextPolicyText(policy) << turn;
      for (size_t t = 0; t < computed->choice().logprobs.size(); ++t) {
        EXPECT_EQ(found->choice().logprobs.at(t).logprob, computed->choice().logprobs[t].logprob);
      }
      const auto& ids = computed->choice().ids;
      request.prompt.insert(request.prompt.end(), ids.begin(), ids.end());
    }
  }
}

// Others in the same step, with and without a policy, cuts and steps in flight change no bit.
TEST_F(EndlessOnTheCpu, ACrowdChangesNoBit) {
  WriteModel(2, {12, 0});
  const auto alone = Start();
  for (const int32_t steps_in_flight : {1, 2}) {
    const auto crowd = Start(steps_in_flight);
    std::vector<Request> requests = {MakeRequest("plain", 20, 30, 9)};
    for (const ContextPolicy& policy : Policies()) {
      requests.push_back(EndlessRequest(policy, 27, 30, static_cast<uint32_t>(requests.size())));
      requests.back().id += std::to_string(requests.size());
    }
    std::vector<std::unique_ptr<StreamReader>> readers;
    std::vector<StreamReader*> all;
    for (Request& request : requests) {
      request.output.logprobs = 1;
      readers.push_back(crowd->Submit(request));
      ASSERT_TRUE(readers.back()->refused().ok()) << readers.back()->refused();
      all.push_back(readers.back().get());
    }
    crowd->RunToEnd(all);
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto solo = Ask(*alone, requests[i]);
      EXPECT_EQ(readers[i]->choice().ids, solo->choice().ids) << requests[i].id;
      for (size_t t = 0; t < solo->choice().logprobs.size(); ++t) {
        EXPECT_EQ(readers[i]->choice().logprobs.at(t).logprob, solo->choice().logprobs[t].logprob);
      }
    }
  }
}

}  // namespace
}  // namespace tramontane
