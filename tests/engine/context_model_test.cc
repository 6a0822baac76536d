// Texts that outgrow their context, in a model of three layers of which two have windows of their own,
// against a decoder in double precision that does to its cache what each policy says (reference::Mistral):
// keys are really turned, rows really taken out, and what is left really computed again. Held to it are the
// scores of given texts, what comes of prompts in chunks of several sizes, and greedy tokens wherever the
// best one leads; alone, in a crowd, behind hits of the prefix cache, and over quantised pages.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/context_policy.h"
#include "tests/reference/mistral_reference.h"
#include "tests/reference/sampling.h"
#include "tests/support/broken_rule.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_scale.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_reference.h"

namespace tramontane {
namespace {

using Logits = std::vector<std::vector<double>>;  // [tokens][vocab]

// As in window_test: f32 arithmetic through three layers. A logprob is a logit less a mean of logits.
constexpr double kLogitTolerance = 1e-4;
constexpr double kTolerance = 2 * kLogitTolerance;

// Windows that end before the sinks when a context is full, and one that does not.
TinyModel ModelUnderPolicies() {
  TinyModel model;
  model.layers = 3;
  model.head_dim = 16;
  model.window = {9, 0, 20};
  model.Randomise(11);
  return model;
}

ContextPolicy Policy(ContextPolicyType type, int64_t n_ctx, int64_t n_keep, int64_t n_discard = 0) {
  return {.type = type, .n_ctx = n_ctx, .n_keep = n_keep, .n_discard = n_discard};
}

// Nothing kept; sinks within a window and beyond it; one token discarded at a time, and all that may be,
// after which the windows reach the sinks again.
const std::vector<ContextPolicy>& Policies() {
  static const std::vector<ContextPolicy> policies = {
      Policy(ContextPolicyType::kSinks, 24, 4),          Policy(ContextPolicyType::kSinks, 17, 0),
      Policy(ContextPolicyType::kSinks, 15, 13),         Policy(ContextPolicyType::kShift, 24, 4, 1),
      Policy(ContextPolicyType::kShift, 24, 6, 18),      Policy(ContextPolicyType::kShift, 21, 5, 3),
      Policy(ContextPolicyType::kShift, 13, 0, 5),       Policy(ContextPolicyType::kReevaluate, 24, 4, 10),
      Policy(ContextPolicyType::kReevaluate, 13, 0, 13), Policy(ContextPolicyType::kReevaluate, 21, 5, 1),
  };
  return policies;
}

class PoliciesAgainstTheModel : public testing::Test {
 protected:
  PoliciesAgainstTheModel() : tiny_(ModelUnderPolicies()) { tiny_.WriteMistral(folder_); }

  std::unique_ptr<CpuEngine> Start(int64_t max_step_tokens, DType kv_dtype = DType::kF32,
                                   int64_t pool_pages = 400) const {
    BackendEngine::Options options;
    options.kv_dtype = kv_dtype;
    options.limits = SmallLimits(pool_pages);
    options.limits.max_step_tokens = max_step_tokens;
    return std::make_unique<CpuEngine>(folder_.path(), options);
  }

  static Request Endless(const ContextPolicy& policy, int64_t prompt_tokens, int64_t max_tokens) {
    Request request = MakeRequest("endless", prompt_tokens, max_tokens);
    request.context_policy = policy;
    request.output.logprobs = kMaxTopLogprobs;
    return request;
  }

  static std::unique_ptr<StreamReader> Ask(EngineUnderTest& test, const Request& request) {
    auto reader = test.Submit(request);
    EXPECT_TRUE(reader->refused().ok()) << reader->refused();
    if (reader->refused().ok()) test.RunToEnd({reader.get()});
    return reader;
  }

  Logits LogitsOf(const reference::ContextRule& rule, const std::vector<int32_t>& text,
                  DType kv_dtype = DType::kF32) const {
    return LogitsAlong(reference::Mistral(ReferenceWeightsOf(tiny_), rule, ReferenceRoundingOf(kv_dtype)),
                       text);
  }

  // What was said of one token, and of the best ones in its place.
  void ExpectOf(const std::vector<double>& logits, const TokenInfo& info, double tolerance) {
    const std::vector<double> want = reference::LogSoftmax(logits);
    const auto compare = [&](int32_t token, float logprob) {
      const double difference = std::abs(logprob - want[static_cast<size_t>(token)]);
      worst_ = std::max(worst_, difference);
      EXPECT_LE(difference, tolerance) << "token " << token;
    };
    compare(info.token, info.logprob);
    ASSERT_EQ(info.top.size(), static_cast<size_t>(kMaxTopLogprobs));
    for (const TokenLogprob& top : info.top) compare(top.token, top.logprob);
    std::vector<double> ordered = want;
    std::nth_element(ordered.begin(), ordered.begin() + 1, ordered.end(), std::greater<>());
    ++compared_;
    if (ordered[0] - ordered[1] <= 2 * tolerance) return;
    ++clear_;
    EXPECT_EQ(want[static_cast<size_t>(info.top[0].token)], ordered[0]) << "another one is the best";
  }

  // All that a greedy request was told, its prompt's scores where it asked for them.
  void ExpectTheReferences(const Request& request, const StreamReader& reader, double tolerance = kTolerance,
                           DType kv_dtype = DType::kF32) {
    const ChoiceReading& reading = reader.choice();
    ASSERT_EQ(static_cast<int64_t>(reading.ids.size()), *request.stopping.max_tokens);
    ASSERT_EQ(reading.logprobs.size(), reading.ids.size());
    std::vector<int32_t> text = request.prompt;
    text.insert(text.end(), reading.ids.begin(), reading.ids.end());
    ASSERT_GT(reading.end().usage.discarded_tokens, 0) << "the context is never full";
    const Logits want = LogitsOf(ReferenceRuleOf(*request.context_policy), text, kv_dtype);
    const std::vector<TokenInfo>& scores = reader.started().at(0).prompt_logprobs;
    ASSERT_EQ(scores.size(), request.output.prompt_logprobs >= 0 ? request.prompt.size() - 1 : 0);
    for (size_t i = 0; i < scores.size(); ++i) {
      SCOPED_TRACE("after " + std::to_string(i + 1) + " tokens of the prompt");
      ASSERT_EQ(scores[i].token, request.prompt[i + 1]);
      ExpectOf(want[i], scores[i], tolerance);
    }
    for (size_t i = 0; i < reading.ids.size(); ++i) {
      SCOPED_TRACE("after " + std::to_string(i) + " tokens of output");
      ASSERT_EQ(reading.logprobs[i].token, reading.ids[i]);
      EXPECT_EQ(reading.ids[i], reading.logprobs[i].top[0].token) << "greedy";
      ExpectOf(want[request.prompt.size() - 1 + i], reading.logprobs[i], tolerance);
    }
  }

  void TearDown() override {
    RecordProperty("largest_difference", std::to_string(worst_));
    RecordProperty("clear", std::to_string(clear_) + " of " + std::to_string(compared_));
  }

  const TempFolder folder_;
  const TinyModel tiny_;
  double worst_ = 0;
  int64_t compared_ = 0;
  int64_t clear_ = 0;  // whose best one leads by more than twice the tolerance
};

TEST_F(PoliciesAgainstTheModel, AnswersAreTheModelsHoweverThePromptIsCut) {
  const int64_t outputs = ScaledCount(40, 12);
  for (const ContextPolicy& policy : Policies()) {
    SCOPED_TRACE(ContextPolicyText(policy));
    for (const int64_t chunk : {1, 3, 16, 64}) {
      SCOPED_TRACE("chunks of " + std::to_string(chunk));
      for (const int64_t prompt : {7, 61}) {  // one that fills its context by its output, one by itself
        const Request request =
            Endless(policy, prompt, prompt == 7 ? std::max<int64_t>(outputs, 20) : outputs);
        const auto test = Start(chunk);
        ExpectTheReferences(request, *Ask(*test, request));
      }
    }
  }
  EXPECT_GT(clear_, compared_ * 9 / 10);
}

// Under reevaluate positions of a prompt change while it is computed, and no prompt is scored.
TEST_F(PoliciesAgainstTheModel, ScoresOfGivenTextsAreTheModels) {
  for (const ContextPolicy& policy : Policies()) {
    if (policy.type == ContextPolicyType::kReevaluate) continue;
    SCOPED_TRACE(ContextPolicyText(policy));
    for (const int64_t chunk : {5, 16, 64}) {
      SCOPED_TRACE("chunks of " + std::to_string(chunk));
      Request request = Endless(policy, ScaledCount(150, 60), 1);
      request.output.prompt_logprobs = kMaxTopLogprobs;
      const auto test = Start(chunk);
      ExpectTheReferences(request, *Ask(*test, request));
    }
  }
  EXPECT_GT(clear_, compared_ * 9 / 10);
}

// The same prompt again, and the next turn.
TEST_F(PoliciesAgainstTheModel, AnswersBehindAHitAreTheModels) {
  const int64_t outputs = ScaledCount(24, 12);
  for (const ContextPolicy& policy : Policies()) {
    SCOPED_TRACE(ContextPolicyText(policy));
    const auto test = Start(16);
    Request request = Endless(policy, 50, outputs);
    const auto first = Ask(*test, request);
    ExpectTheReferences(request, *first);
    const auto again = Ask(*test, request);
    ExpectTheReferences(request, *again);
    EXPECT_GT(again->choice().end().usage.cached_tokens, 0);
    const std::vector<int32_t>& ids = first->choice().ids;
    request.prompt.insert(request.prompt.end(), ids.begin(), ids.end());
    request.prompt.insert(request.prompt.end(), {9, 10, 11});
    const auto next = Ask(*test, request);
    ExpectTheReferences(request, *next);
    if (policy.type != ContextPolicyType::kReevaluate) {
      EXPECT_GE(next->choice().end().usage.cached_tokens, 50 / 4 * 4);
    }
  }
}

// All policies in the same steps, in a pool that cannot hold them all.
TEST_F(PoliciesAgainstTheModel, AnswersOfACrowdAreTheModels) {
  const auto test = Start(16, DType::kF32, /*pool_pages=*/48);
  std::vector<Request> requests;
  std::vector<std::unique_ptr<StreamReader>> readers;
  std::vector<StreamReader*> all;
  for (size_t i = 0; i < Policies().size(); ++i) {
    requests.push_back(Endless(Policies()[i], 20 + 5 * static_cast<int64_t>(i), ScaledCount(40, 20)));
    requests.back().id += std::to_string(i);
    readers.push_back(test->Submit(requests.back()));
    ASSERT_TRUE(readers.back()->refused().ok()) << readers.back()->refused();
    all.push_back(readers.back().get());
  }
  test->RunToEnd(all);
  EXPECT_GT(test->engine().Load().preemptions, 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(ContextPolicyText(Policies()[i]));
    ExpectTheReferences(requests[i], *readers[i]);
  }
}

// The model's rows are rounded as the pages' are, from numbers that are f32 here and double there: now and
// then one of them falls to the other side and becomes the next code, which with a step of 1/127 of a row's
// largest number (int8), 2^-8 (bf16) or 2^-4 (fp8) of its own, or 1/7 (int4) moves a score by about as much
// of it, in one key of those that a query sees. The coarser the codes, the fewer do so. (Measured: 0.017.)
constexpr double kToleranceOfCodes = 0.05;
TEST_F(PoliciesAgainstTheModel, AnswersOverQuantisedPagesAreTheModels) {
  for (const DType dtype : {DType::kBf16, DType::kFp8E4M3, DType::kInt8, DType::kInt4}) {
    SCOPED_TRACE(DTypeName(dtype));
    for (const ContextPolicy& policy : Policies()) {
      SCOPED_TRACE(ContextPolicyText(policy));
      const auto test = Start(7, dtype);
      const Request request = Endless(policy, 31, ScaledCount(40, 12));
      ExpectTheReferences(request, *Ask(*test, request), kToleranceOfCodes, dtype);
      const auto found = Ask(*test, request);
      EXPECT_GT(found->choice().end().usage.cached_tokens, 0);
      ExpectTheReferences(request, *found, kToleranceOfCodes, dtype);
    }
  }
}

// The tolerances would not let a rule pass that the product breaks; kNone shows that it is the rule.
TEST_F(PoliciesAgainstTheModel, ARuleBrokenInTheProductShows) {
  const ContextPolicy policy = Policy(ContextPolicyType::kShift, 24, 6, 18);
  const Request request = Endless(policy, 61, 20);
  for (const KvRule rule : {KvRule::kNone, KvRule::kWindow, KvRule::kSinkQueryPosition}) {
    SCOPED_TRACE(static_cast<int>(rule));
    const BrokenRule broken(rule);
    const auto test = Start(16);
    const auto reader = Ask(*test, request);
    const ChoiceReading& reading = reader->choice();
    std::vector<int32_t> text = request.prompt;
    text.insert(text.end(), reading.ids.begin(), reading.ids.end());
    const Logits want = LogitsOf(ReferenceRuleOf(policy), text);
    double largest = 0;
    for (size_t i = 0; i < reading.logprobs.size(); ++i) {
      const TokenInfo& info = reading.logprobs[i];
      const double expected =
          reference::LogSoftmax(want[request.prompt.size() - 1 + i])[static_cast<size_t>(info.token)];
      largest = std::max(largest, std::abs(info.logprob - expected));
    }
    EXPECT_TRUE(rule == KvRule::kNone ? largest <= kTolerance : largest > 100 * kTolerance) << largest;
  }
}

// What the tolerances would not let pass: a rule that is off by one, or another policy. Two pairs are one:
// where nothing is kept, the newest tokens are as far from each other wherever they stand; and where all
// behind the first n_keep goes at once, what is left has seen nothing else.
TEST_F(PoliciesAgainstTheModel, AnotherRuleWouldShow) {
  using reference::WhenFull;
  const std::vector<int32_t> text = MakeRequest("text", ScaledCount(100, 50), 0).prompt;
  const auto apart = [](const Logits& a, const Logits& b) {
    double largest = 0;
    for (size_t t = 0; t < a.size(); ++t) {
      for (size_t v = 0; v < a[t].size(); ++v) largest = std::max(largest, std::abs(a[t][v] - b[t][v]));
    }
    return largest;
  };
  for (const ContextPolicy& policy : Policies()) {
    SCOPED_TRACE(ContextPolicyText(policy));
    const reference::ContextRule rule = ReferenceRuleOf(policy);
    const Logits logits = LogitsOf(rule, text);
    reference::ContextRule other = rule;
    ++other.n_ctx;
    EXPECT_GT(apart(logits, LogitsOf(other, text)), 1.0) << "one token more in the context";
    other = rule;
    ++other.n_keep;
    if (other.n_keep + std::max<int64_t>(1, other.n_discard) <= other.n_ctx) {
      EXPECT_GT(apart(logits, LogitsOf(other, text)), 1.0) << "one token more kept";
    }
    for (const WhenFull when_full : {WhenFull::kSinks, WhenFull::kShift, WhenFull::kReevaluate}) {
      if (when_full == rule.when_full) continue;
      other = rule;
      other.when_full = when_full;
      other.n_discard = std::max<int64_t>(1, rule.n_discard);
      const bool sinks = rule.when_full == WhenFull::kSinks || when_full == WhenFull::kSinks;
      const bool is_one = sinks ? when_full == WhenFull::kShift && rule.n_keep == 0
                                : rule.n_discard == rule.n_ctx - rule.n_keep;
      const double difference = apart(logits, LogitsOf(other, text));
      EXPECT_TRUE(is_one ? difference < 1e-9 : difference > 1.0) << difference << " from another policy";
    }
  }
}

}  // namespace
}  // namespace tramontane
