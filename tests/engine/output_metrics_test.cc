// What the output thread counts for /metrics, on a clock that the test moves.
#include "engine/output/output_metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/support/in_process_engine.h"

namespace tramontane {
namespace {

int64_t Total(const Histogram& latencies) {
  const std::vector<int64_t> counts = latencies.Counts();
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Observations up to and with the bound.
int64_t AtMost(const Histogram& latencies, double bound_seconds) {
  const std::vector<double>& bounds = latencies.bounds();
  const auto end = std::upper_bound(bounds.begin(), bounds.end(), bound_seconds) - bounds.begin();
  const std::vector<int64_t> counts = latencies.Counts();
  return std::accumulate(counts.begin(), counts.begin() + end, int64_t{0});
}

TEST(HistogramTest, ABoundBelongsToItsBucket) {
  Histogram latencies({0.001, 0.01});
  for (const int64_t ns : {0, 1'000'000, 1'000'001, 10'000'000, 10'000'001}) latencies.ObserveNs(ns);
  EXPECT_EQ(latencies.Counts(), (std::vector<int64_t>{2, 2, 1}));
  EXPECT_DOUBLE_EQ(latencies.sum(), 0.022000002);
}

// A prompt of one chunk, then a token a step; a step takes a millisecond.
TEST(OutputMetricsTest, TheFirstTokenCountsFromTheReceiptAndEachOtherFromTheOneBefore) {
  SteppedEngine test(SmallLimits(64));
  Request request = MakeRequest("r", 5, 4);
  request.choices = 2;
  const auto reader = test.Submit(request);
  test.clock().Advance(30'000'000);  // in the inbox
  test.RunToEnd({reader.get()});

  const OutputMetrics& metrics = test.engine().output_metrics();
  EXPECT_EQ(Total(metrics.time_to_first_token()), 2) << "one of each choice";
  EXPECT_EQ(AtMost(metrics.time_to_first_token(), 0.02), 0);
  EXPECT_EQ(AtMost(metrics.time_to_first_token(), 0.04), 2);
  EXPECT_DOUBLE_EQ(metrics.time_to_first_token().sum(), 2 * 0.031);
  EXPECT_EQ(Total(metrics.inter_token_latency()), 2 * 3);
  EXPECT_NEAR(metrics.inter_token_latency().sum(), 2 * 3 * 0.001, 1e-12);
  EXPECT_EQ(metrics.finished_choices(FinishReason::kLength), 2);
}

TEST(OutputMetricsTest, EveryEndIsCountedByItsReason) {
  SteppedEngine test(SmallLimits(64));
  const auto cancelled = test.Submit(MakeRequest("c", 5, 40));
  const auto whole = test.Submit(MakeRequest("w", 5, 3, 1));
  test.Step();
  cancelled->stream().Cancel();
  test.RunToEnd({cancelled.get(), whole.get()});
  const OutputMetrics& metrics = test.engine().output_metrics();
  EXPECT_EQ(metrics.finished_choices(FinishReason::kCancelled), 1);
  EXPECT_EQ(metrics.finished_choices(FinishReason::kLength), 1);
  EXPECT_EQ(metrics.finished_choices(FinishReason::kStop), 0);
}

TEST(OutputMetricsTest, TheStagesOfAFirstTokenSumToItsTimeAndTimesOfAChoiceToItsWhole) {
  SteppedEngine test(SmallLimits(64));
  test.clock().Advance(50'000'000);
  Request request = MakeRequest("r", 5, 4);
  request.received_ns = test.clock().NowNs();
  request.arrival = {
      .begun_ns = request.received_ns - 9'000'000, .receive_ns = 2'000'000, .parse_ns = 8'000'000};
  request.tokenized_ns = request.received_ns + 4'000'000;  // of which a millisecond was parsing
  request.counted = std::make_shared<TokenCounts>();
  const std::shared_ptr<TokenCounts> counted = request.counted;
  const auto reader = test.Submit(request);
  test.clock().Advance(30'000'000);  // in the inbox
  test.RunToEnd({reader.get()});

  const OutputMetrics& metrics = test.engine().output_metrics();
  const auto stage = [&metrics](size_t index) { return metrics.stage(index, PromptLengthOf(5)).sum(); };
  EXPECT_DOUBLE_EQ(stage(0), 0.002) << "receive";
  EXPECT_DOUBLE_EQ(stage(1), 0.008) << "parse";
  EXPECT_DOUBLE_EQ(stage(2), 0.003) << "tokenize";
  EXPECT_DOUBLE_EQ(stage(3), 0.027) << "queue";
  double sum = 0;
  for (size_t i = 0; i < OutputMetrics::kStages; ++i) sum += stage(i);
  EXPECT_NEAR(sum, metrics.time_to_first_token().sum(), 1e-12);
  const OutputMetrics::ChoiceTimes& times = metrics.times();
  EXPECT_DOUBLE_EQ(times.queue.sum(), 0.027);
  EXPECT_NEAR(times.prefill.sum() + times.decode.sum(), times.inference.sum(), 1e-12);
  EXPECT_NEAR(times.decode.sum(), 0.003, 1e-12);
  EXPECT_NEAR(times.per_output_token.sum(), 0.001, 1e-12);
  EXPECT_NEAR(times.e2e.sum(), 0.013 + times.queue.sum() + times.inference.sum(), 1e-12);
  EXPECT_EQ(metrics.lengths().prompt.sum(), 5);
  EXPECT_EQ(metrics.lengths().generation.sum(), 4);
  EXPECT_EQ(counted->prompt, 5);
  EXPECT_EQ(counted->generation, 4);
  EXPECT_EQ(metrics.tokens(), 4);
}

TEST(OutputMetricsTest, PromptsGoByTheirLength) {
  for (const auto& [tokens, length] : std::initializer_list<std::pair<int64_t, const char*>>{
           {1, "le128"}, {128, "le128"}, {129, "le1k"}, {1024, "le1k"}, {8192, "le8k"}, {8193, "gt8k"}}) {
    EXPECT_STREQ(kPromptLengths[PromptLengthOf(tokens)], length) << tokens;
  }
  EXPECT_EQ(OneTwoFive(20), (std::vector<double>{1, 2, 5, 10, 20}));
}

// One waits for the only seat, one is in the middle of its prompt, one has a token.
TEST(OutputMetricsTest, CancelsGoByWhatTheRequestDid) {
  EngineLimits limits = SmallLimits(64);
  limits.max_sequences = 1;
  limits.max_choices = 1;
  limits.max_step_tokens = 4;
  SteppedEngine test(limits);
  const auto cancelled = [&test] { return test.engine().Load().cancelled_in_state; };
  for (const int steps : {1, 5}) {  // of a prompt of 10: within it, and behind it
    const auto first = test.Submit(MakeRequest("f", 10, 40));
    const auto behind = test.Submit(MakeRequest("b", 10, 40));
    for (int i = 0; i < steps; ++i) test.Step();
    first->stream().Cancel();
    behind->stream().Cancel();
    test.RunToEnd({first.get(), behind.get()});
  }
  EXPECT_EQ(cancelled(), (std::array<int64_t, 3>{2, 1, 1}));
}

// Two sequences that do not fit: what the one set aside computes again is told apart from prompts.
TEST(OutputMetricsTest, WhatAPreemptionUndoesIsCountedAsComputedAgain) {
  EngineLimits limits = SmallLimits(17);
  limits.prefix_cache = false;
  SteppedEngine test(limits);
  const auto first = test.Submit(MakeRequest("f", 4, 50));
  const auto second = test.Submit(MakeRequest("s", 4, 50));
  test.RunToEnd({first.get(), second.get()});
  const EngineLoad load = test.engine().Load();
  ASSERT_GT(load.preemptions, 0) << "else the test tells nothing";
  EXPECT_EQ(load.prefix_queries, 8);
  // Prefill steps computed prompts, what was undone, and of each that was set aside its last token.
  EXPECT_EQ(load.recomputed_tokens, load.prompt_tokens - 8 - load.preemptions);
  EXPECT_EQ(test.engine().step_metrics().tokens(0).sum(), static_cast<double>(load.prompt_tokens));
  EXPECT_EQ(Total(test.engine().step_metrics().seconds(1)), load.decode_steps);
}

}  // namespace
}  // namespace tramontane
