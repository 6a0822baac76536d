// What the output thread counts for /metrics, on a clock that the test moves.
#include "engine/output/output_metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/in_process_engine.h"

namespace tramontane {
namespace {

int64_t Total(const LatencyHistogram& latencies) {
  const std::vector<int64_t> counts = latencies.Counts();
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Observations up to and with the bound.
int64_t AtMost(const LatencyHistogram& latencies, double bound_seconds) {
  const std::vector<double>& bounds = latencies.bounds_seconds();
  const auto end = std::upper_bound(bounds.begin(), bounds.end(), bound_seconds) - bounds.begin();
  const std::vector<int64_t> counts = latencies.Counts();
  return std::accumulate(counts.begin(), counts.begin() + end, int64_t{0});
}

TEST(LatencyHistogramTest, ABoundBelongsToItsBucket) {
  LatencyHistogram latencies({0.001, 0.01});
  latencies.Observe(0);
  latencies.Observe(1'000'000);
  latencies.Observe(1'000'001);
  latencies.Observe(10'000'000);
  latencies.Observe(10'000'001);
  EXPECT_EQ(latencies.Counts(), (std::vector<int64_t>{2, 2, 1}));
  EXPECT_DOUBLE_EQ(latencies.sum_seconds(), 0.022000002);
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
  EXPECT_DOUBLE_EQ(metrics.time_to_first_token().sum_seconds(), 2 * 0.031);
  EXPECT_EQ(Total(metrics.inter_token_latency()), 2 * 3);
  EXPECT_NEAR(metrics.inter_token_latency().sum_seconds(), 2 * 3 * 0.001, 1e-12);
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

}  // namespace
}  // namespace tramontane
