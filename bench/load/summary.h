// What the records of a run come to: counts, rates, latencies with intervals. Plain values; pure, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/load/bootstrap.h"
#include "bench/load/latencies.h"
#include "bench/load/record.h"

namespace tramontane::load {

// A limit in ms that each good request keeps: `--goodput "ttft:2000 tpot:100"`.
struct GoodputLimit {
  Metric metric = Metric::kTtft;
  double most_ms = 0;
};

struct SummaryOptions {
  std::vector<double> percentiles = {50, 90, 95, 99, 99.9};
  std::vector<GoodputLimit> goodput;
  // Requests intended within the window are measured, whenever they end.
  int64_t warmup_requests = 0;
  int64_t warmup_ns = 0;
  bool closed_loop = false;
  bool intervals = true;  // false: none are drawn, which is most of the work
  uint64_t seed = 0;
};

// One latency of all successes, in ms.
struct MetricSummary {
  int64_t samples = 0;
  // Nothing where there is no sample.
  std::optional<double> mean, median, deviation;
  std::map<double, double> percentiles;                          // by p
  std::map<double, std::optional<double>> censored_percentiles;  // failures are longer than everything
  std::map<std::string, Interval> intervals;                     // "mean", "median", "p99"
  std::vector<double> few_samples;                               // the percentiles with fewer than 10 beyond
};

struct Summary {
  int64_t measured = 0;  // completed and failed
  int64_t completed = 0;
  int64_t without_content = 0;  // of completed: they have no latency but `done`
  int64_t failed = 0;
  std::map<std::string, int64_t> failures;  // by name; all names that came but "ok", which is completed
  double duration_s = 0;                    // from the window's begin to the last end of what is measured
  int64_t input_tokens = 0;                 // of successes
  int64_t output_tokens = 0;
  double request_rate = 0;  // successes a second
  double output_token_rate = 0;
  double total_token_rate = 0;
  std::optional<double> goodput;  // a second; nothing without limits
  double most_output_tokens_in_a_second = 0;
  int64_t most_in_flight = 0;
  std::map<std::string, int64_t> output_tokens_from;  // successes, by who counted
  std::array<MetricSummary, std::size(kMetrics)> metrics;
  std::optional<double> client_lag_p99_ms;
  int64_t reconnects = 0;
  bool steady = true;

  const MetricSummary& Of(Metric metric) const { return metrics[static_cast<size_t>(metric)]; }
  double success_share() const {
    return measured == 0 ? 0 : static_cast<double>(completed) / static_cast<double>(measured);
  }
};

// Whether a request is measured: inside the window.
bool IsMeasured(const RequestRecord& record, int64_t start_ns, const SummaryOptions& options);
// By the successes' whole streams: a failure is not good; a request without a sample of a metric keeps its
// limit.
bool IsGood(const RequestRecord& record, const std::vector<GoodputLimit>& limits);

// `start_ns`: of the run. Records in the order of their index.
Summary Summarize(const std::vector<RequestRecord>& records, int64_t start_ns, const SummaryOptions& options);

// Samples of successes by request in arrival order: what intervals and ratios are drawn from.
SampleSeries SeriesOf(const std::vector<const RequestRecord*>& records, Metric metric);

// False where what is in flight keeps growing through the window: ten slices of it, of which the last three
// hold on average half as much again, and 2 more, than the first three, and later slices mostly more than
// earlier.
bool IsSteady(const std::vector<const RequestRecord*>& records);

}  // namespace tramontane::load
