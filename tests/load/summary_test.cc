// What records come to: each definition by a stream whose stamps are written by hand.
#include "bench/load/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/load/random.h"

namespace tramontane::load {
namespace {

using testing::ElementsAre;
using testing::Pair;
using testing::UnorderedElementsAre;

constexpr int64_t kMs = 1'000'000, kStart = 1'000'000 * kMs;

// Intended at `intended_ms` of the run, sent 2 ms later, first content `ttft_ms` after it was intended, then
// gaps.
RequestRecord Record(int64_t index, double intended_ms, double ttft_ms,
                     const std::vector<double>& gaps_ms = {}) {
  RequestRecord record;
  record.index = index;
  record.intended_ns = kStart + static_cast<int64_t>(intended_ms * kMs);
  record.sent_ns = record.intended_ns + 2 * kMs;
  record.connected_ns = record.sent_ns + kMs;
  record.headers_ns = record.sent_ns + 3 * kMs;
  record.first_any_ns = record.sent_ns + 4 * kMs;
  int64_t at = record.intended_ns + static_cast<int64_t>(ttft_ms * kMs);
  record.content_ns.push_back(at);
  for (const double gap : gaps_ms) record.content_ns.push_back(at += static_cast<int64_t>(gap * kMs));
  record.done_ns = at + kMs;
  record.input_tokens = 10;
  record.output_tokens = static_cast<int32_t>(record.content_ns.size());
  record.output_tokens_from = TokenCountFrom::kUsage;
  record.status = 200;
  return record;
}

RequestRecord Failed(RequestRecord record, Outcome outcome, int32_t status = 0) {
  record.outcome = outcome;
  record.status = status;
  return record;
}

TEST(LatenciesTest, AreAsDefined) {
  RequestRecord record = Record(0, 100, 50, {10, 20, 30});
  record.output_tokens = 7;  // events carry more than one
  const Latencies latencies = LatenciesOf(record);
  EXPECT_EQ(latencies.ttft, 50);
  EXPECT_EQ(latencies.ttft_sent, 48);
  EXPECT_EQ(latencies.ttft_any, 4);
  EXPECT_EQ(latencies.connect, 1);
  EXPECT_EQ(latencies.headers, 3);
  EXPECT_THAT(latencies.itl, ElementsAre(10, 20, 30));
  EXPECT_EQ(latencies.tpot, 10);  // 60 ms over 6
  EXPECT_EQ(latencies.e2el, 110);
  EXPECT_EQ(latencies.e2el_sent, 108);
  EXPECT_EQ(latencies.done, 109);
  EXPECT_EQ(latencies.client_lag, 2);
}

TEST(LatenciesTest, WhatIsNotThereIsNoZero) {
  RequestRecord record = Record(0, 0, 5);
  EXPECT_EQ(LatenciesOf(record).tpot, std::nullopt);  // one token
  record.content_ns.clear();
  record.headers_ns.reset();
  const Latencies without = LatenciesOf(record);
  EXPECT_EQ(without.ttft, std::nullopt);
  EXPECT_EQ(without.ttft_sent, std::nullopt);
  EXPECT_EQ(without.e2el, std::nullopt);
  EXPECT_EQ(without.headers, std::nullopt);
  EXPECT_EQ(without.client_lag, 2);
  record.sent_ns = 0;
  EXPECT_EQ(LatenciesOf(record).client_lag, std::nullopt);
}

TEST(SummaryTest, CountsRatesAndFailures) {
  std::vector<RequestRecord> records;
  for (int i = 0; i < 8; ++i) records.push_back(Record(i, 100.0 * i, 100, {10, 10}));
  records[3] = Failed(records[3], Outcome::kHttpError, 429);
  records[5] = Failed(records[5], Outcome::kStreamError);
  records[6].reconnects = 1;
  records[7].output_tokens_from = TokenCountFrom::kEvents;
  const Summary summary = Summarize(records, kStart, {});
  EXPECT_EQ(summary.measured, 8);
  EXPECT_EQ(summary.completed, 6);
  EXPECT_EQ(summary.failed, 2);
  EXPECT_THAT(summary.failures, UnorderedElementsAre(Pair("http_429", 1), Pair("stream_error", 1)));
  EXPECT_EQ(summary.input_tokens, 60);
  EXPECT_EQ(summary.output_tokens, 18);
  EXPECT_DOUBLE_EQ(summary.duration_s, 0.821);  // until the last stream's [DONE]
  EXPECT_DOUBLE_EQ(summary.request_rate, 6 / 0.821);
  EXPECT_DOUBLE_EQ(summary.output_token_rate, 18 / 0.821);
  EXPECT_DOUBLE_EQ(summary.total_token_rate, 78 / 0.821);
  EXPECT_EQ(summary.reconnects, 1);
  EXPECT_EQ(summary.most_in_flight, 2);  // each is 119 ms under way, one in 100 ms begins
  EXPECT_THAT(summary.output_tokens_from, UnorderedElementsAre(Pair("usage", 5), Pair("events", 1)));
  EXPECT_EQ(summary.client_lag_p99_ms, 2);
  EXPECT_EQ(summary.goodput, std::nullopt);
  EXPECT_EQ(summary.Of(Metric::kTtft).samples, 6);
  EXPECT_EQ(summary.Of(Metric::kItl).samples, 12);
  EXPECT_DOUBLE_EQ(summary.most_output_tokens_in_a_second, 24);  // failures' tokens were sent too
}

// They count as answers, and move no latency.
TEST(SummaryTest, AnswersWithoutContentAreSuccessesWithoutLatencies) {
  const auto empty = [](int64_t index) {
    RequestRecord record = Record(index, 100.0 * static_cast<double>(index), 100);
    record.content_ns.clear();
    record.output_tokens = 0;
    return record;
  };
  SummaryOptions options;
  options.goodput = {{Metric::kTtft, 200}};
  const Summary some = Summarize({Record(0, 0, 100, {10}), empty(1), empty(2)}, kStart, options);
  EXPECT_EQ(some.completed, 3);
  EXPECT_EQ(some.without_content, 2);
  EXPECT_EQ(some.failed, 0);
  EXPECT_EQ(some.Of(Metric::kTtft).samples, 1);
  EXPECT_EQ(some.Of(Metric::kTtft).censored_percentiles.at(99), 100);
  EXPECT_EQ(some.output_tokens, 2);
  EXPECT_DOUBLE_EQ(*some.goodput, 3 / some.duration_s);

  const Summary none = Summarize({empty(0), empty(1)}, kStart, {});
  EXPECT_EQ(none.completed, 2);
  EXPECT_EQ(none.output_token_rate, 0);
  EXPECT_EQ(none.most_output_tokens_in_a_second, 0);
  for (const Metric metric : kMetrics) {
    EXPECT_EQ(none.Of(metric).mean, std::nullopt) << MetricName(metric);
    EXPECT_EQ(none.Of(metric).censored_percentiles.at(99), std::nullopt) << MetricName(metric);
  }
}

TEST(SummaryTest, GoodIsWhatKeepsEveryLimit) {
  std::vector<RequestRecord> records = {Record(0, 0, 100, {10}), Record(1, 0, 300, {10}),
                                        Record(2, 0, 100, {90}), Record(3, 0, 100, {10}), Record(4, 0, 200)};
  records[3] = Failed(records[3], Outcome::kClosedEarly);
  SummaryOptions options;
  options.goodput = {{Metric::kTtft, 200}, {Metric::kTpot, 50}};
  const Summary summary = Summarize(records, kStart, options);
  // The first, and the last: at the limit is within it, and one token has no time between tokens.
  ASSERT_TRUE(summary.goodput);
  EXPECT_DOUBLE_EQ(*summary.goodput, 2 / summary.duration_s);
}

TEST(SummaryTest, TheWindowIsOfIntendedTimes) {
  std::vector<RequestRecord> records;
  for (int i = 0; i < 10; ++i) records.push_back(Record(i, 100.0 * i, 950));
  SummaryOptions options;
  options.warmup_requests = 3;
  EXPECT_EQ(Summarize(records, kStart, options).measured, 7);
  options.warmup_requests = 0;
  options.warmup_ns = 400 * kMs;
  const Summary by_time = Summarize(records, kStart, options);
  EXPECT_EQ(by_time.measured, 6);  // those of 400 ms and later; all ended after the window's begin
  EXPECT_NEAR(by_time.duration_s, 1.451, 1e-9);
}

TEST(SummaryTest, FailuresCensorPercentiles) {
  std::vector<RequestRecord> records;
  for (int i = 0; i < 100; ++i) records.push_back(Record(i, i, 100 + i));
  const Summary well = Summarize(records, kStart, {});
  EXPECT_EQ(well.Of(Metric::kTtft).censored_percentiles.at(99), well.Of(Metric::kTtft).percentiles.at(99));
  records[0] = Failed(records[0], Outcome::kTimeout);
  records[1] = Failed(records[1], Outcome::kTimeout);
  const Summary failed = Summarize(records, kStart, {});
  EXPECT_EQ(failed.Of(Metric::kTtft).censored_percentiles.at(99), std::nullopt);
  ASSERT_TRUE(failed.Of(Metric::kTtft).censored_percentiles.at(90));
  EXPECT_DOUBLE_EQ(*failed.Of(Metric::kTtft).censored_percentiles.at(90), 102 + 89.1);
  EXPECT_GT(failed.Of(Metric::kTtft).percentiles.at(99), 190);  // of successes
}

TEST(SummaryTest, PercentilesOfFewSamplesAreListed) {
  std::vector<RequestRecord> records;
  for (int i = 0; i < 200; ++i) records.push_back(Record(i, i, 100 + i % 7));
  SummaryOptions options;
  options.percentiles = {50, 95, 99.9};
  const MetricSummary ttft = Summarize(records, kStart, options).Of(Metric::kTtft);
  EXPECT_THAT(ttft.few_samples, ElementsAre(99, 99.9));  // 99 is always there
  EXPECT_TRUE(ttft.percentiles.contains(90));
  EXPECT_TRUE(ttft.intervals.contains("p99.9"));
  EXPECT_TRUE(ttft.intervals.contains("mean"));
  EXPECT_LE(ttft.intervals.at("mean").low, *ttft.mean);
  EXPECT_GE(ttft.intervals.at("mean").high, *ttft.mean);
}

TEST(SummaryTest, ARunWithoutSuccessHasNoLatency) {
  const Summary summary = Summarize({Failed(Record(0, 0, 1), Outcome::kRefused)}, kStart, {});
  EXPECT_EQ(summary.completed, 0);
  EXPECT_EQ(summary.Of(Metric::kTtft).mean, std::nullopt);
  EXPECT_TRUE(summary.Of(Metric::kTtft).percentiles.empty());
  EXPECT_EQ(summary.success_share(), 0);
  EXPECT_EQ(Summarize({}, kStart, {}).measured, 0);
}

// ---- steady

bool Steady(const std::vector<RequestRecord>& records) { return Summarize(records, kStart, {}).steady; }

TEST(SummaryTest, AQueueThatGrowsIsNotSteady) {
  std::vector<RequestRecord> overloaded, loaded;
  for (int i = 0; i < 500; ++i) {
    overloaded.push_back(Record(i, 10.0 * i, 20 + 1.0 * i));  // 1.1 times what the server can
    loaded.push_back(Record(i, 10.0 * i, 200));
  }
  EXPECT_FALSE(Steady(overloaded));
  EXPECT_TRUE(Steady(loaded));
  SummaryOptions closed;
  closed.closed_loop = true;  // which never grows
  EXPECT_TRUE(Summarize(overloaded, kStart, closed).steady);
}

TEST(SummaryTest, AStableQueueIsSteadyMostOfTheTime) {
  int steady = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed, RandomUse::kArrivals);
    std::vector<RequestRecord> records;
    double at = 0, free = 0;  // M/D/1 at 0.7
    for (int i = 0; i < 1000; ++i) {
      at += random.Exponential() * 10 / 0.7;
      free = std::max(free, at) + 10;
      records.push_back(Record(i, at, free - at));
    }
    steady += Steady(records) ? 1 : 0;
  }
  EXPECT_GE(steady, 95);
}

TEST(SummaryTest, WhatOnlyFillsUpAtTheBeginIsSteady) {
  std::vector<RequestRecord> records;  // streams of a sixth of the run
  for (int i = 0; i < 600; ++i) records.push_back(Record(i, 10.0 * i, 1000));
  EXPECT_TRUE(Steady(records));
}

}  // namespace
}  // namespace tramontane::load
