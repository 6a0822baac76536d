#include "bench/load/summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "bench/load/statistics.h"

namespace tramontane::load {
namespace {

// When a request left the client's hands: its last stamp.
int64_t EndOf(const RequestRecord& record) {
  int64_t end = std::max(record.intended_ns, record.sent_ns);
  for (const auto& stamp : {record.connected_ns, record.headers_ns, record.first_any_ns, record.done_ns}) {
    if (stamp) end = std::max(end, *stamp);
  }
  if (!record.content_ns.empty()) end = std::max(end, record.content_ns.back());
  return end;
}

MetricSummary SummarizeMetric(const SampleSeries& series, int64_t failures, const SummaryOptions& options) {
  MetricSummary summary;
  std::vector<double> sorted;
  for (const auto& samples : series) sorted.insert(sorted.end(), samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  summary.samples = static_cast<int64_t>(sorted.size());
  const std::set<double> wanted = [&] {
    std::set<double> all(options.percentiles.begin(), options.percentiles.end());
    all.insert({90.0, 99.0});
    return all;
  }();
  for (const double p : wanted) {
    summary.censored_percentiles[p] = CensoredPercentile(sorted, failures, p);
    if (HasFewBeyond(summary.samples, p)) summary.few_samples.push_back(p);
  }
  if (sorted.empty()) return summary;
  summary.mean = Mean(sorted);
  summary.median = Percentile(sorted, 50);
  summary.deviation = StandardDeviation(sorted);
  std::vector<Statistic> statistics = {Statistic::OfMean(), Statistic::OfPercentile(50)};
  std::vector<std::string> names = {"mean", "median"};
  for (const double p : wanted) {
    summary.percentiles[p] = Percentile(sorted, p);
    statistics.push_back(Statistic::OfPercentile(p));
    names.push_back(PercentileName(p));
  }
  if (!options.intervals) return summary;
  const auto replicates = Replicates(series, statistics, {options.seed});
  for (size_t i = 0; i < names.size(); ++i) {
    if (const auto interval = IntervalOf(replicates[i])) summary.intervals[names[i]] = *interval;
  }
  return summary;
}

// The most output tokens that arrived within one second of the run. A stream's tokens are spread evenly over
// its events, as the server does not say which event carried how many.
double MostTokensInASecond(const std::vector<const RequestRecord*>& records, int64_t start_ns) {
  std::map<int64_t, double> by_second;
  for (const RequestRecord* record : records) {
    if (record->content_ns.empty()) continue;
    const double tokens =
        static_cast<double>(record->output_tokens) / static_cast<double>(record->content_ns.size());
    for (const int64_t ns : record->content_ns) by_second[(ns - start_ns) / 1'000'000'000] += tokens;
  }
  double most = 0;
  for (const auto& [second, tokens] : by_second) most = std::max(most, tokens);
  return most;
}

int64_t MostInFlight(const std::vector<const RequestRecord*>& records) {
  std::vector<std::pair<int64_t, int>> steps;
  for (const RequestRecord* record : records) {
    if (record->sent_ns == 0) continue;
    steps.emplace_back(record->sent_ns, 1);
    steps.emplace_back(EndOf(*record), -1);
  }
  std::sort(steps.begin(), steps.end());
  int64_t now = 0, most = 0;
  for (const auto& [ns, step] : steps) most = std::max(most, now += step);
  return most;
}

void Count(const RequestRecord& record, const SummaryOptions& options, Summary* summary) {
  ++summary->measured;
  summary->reconnects += record.reconnects;
  if (record.outcome != Outcome::kOk) {
    ++summary->failed;
    ++summary->failures[OutcomeName(record.outcome, record.status)];
    return;
  }
  ++summary->completed;
  if (record.content_ns.empty()) ++summary->without_content;
  summary->input_tokens += record.input_tokens;
  summary->output_tokens += record.output_tokens;
  ++summary->output_tokens_from[std::string(TokenCountFromName(record.output_tokens_from))];
  if (!options.goodput.empty() && IsGood(record, options.goodput)) *summary->goodput += 1;
}

}  // namespace

bool IsMeasured(const RequestRecord& record, int64_t start_ns, const SummaryOptions& options) {
  return record.index >= options.warmup_requests && record.intended_ns - start_ns >= options.warmup_ns;
}

bool IsGood(const RequestRecord& record, const std::vector<GoodputLimit>& limits) {
  if (record.outcome != Outcome::kOk) return false;
  const Latencies latencies = LatenciesOf(record);
  return std::all_of(limits.begin(), limits.end(), [&](const GoodputLimit& limit) {
    const std::vector<double> samples = Samples(latencies, limit.metric);
    return std::all_of(samples.begin(), samples.end(), [&](double ms) { return ms <= limit.most_ms; });
  });
}

SampleSeries SeriesOf(const std::vector<const RequestRecord*>& records, Metric metric) {
  SampleSeries series;
  for (const RequestRecord* record : records) {
    if (record->outcome == Outcome::kOk) series.push_back(Samples(LatenciesOf(*record), metric));
  }
  return series;
}

bool IsSteady(const std::vector<const RequestRecord*>& records) {
  constexpr int kSlices = 10, kOuter = 3;
  constexpr size_t kLeastRequests = 50;
  if (records.size() < kLeastRequests) return true;
  const auto [first, last] =
      std::minmax_element(records.begin(), records.end(),
                          [](const auto* a, const auto* b) { return a->intended_ns < b->intended_ns; });
  const int64_t begin = (*first)->intended_ns, length = (*last)->intended_ns - begin;
  if (length <= 0) return true;
  std::array<double, kSlices> mean{};  // in flight (or kept back by a cap), by slice
  for (const RequestRecord* record : records) {
    const auto from =
        static_cast<double>(record->intended_ns - begin) / static_cast<double>(length) * kSlices;
    const int64_t until_ns = record->sent_ns == 0 ? begin + length : EndOf(*record);
    const double until = static_cast<double>(until_ns - begin) / static_cast<double>(length) * kSlices;
    for (int i = 0; i < kSlices; ++i) {
      mean[static_cast<size_t>(i)] += std::max(0.0, std::min(until, i + 1.0) - std::max(from, double(i)));
    }
  }
  const double early = std::accumulate(mean.begin(), mean.begin() + kOuter, 0.0) / kOuter;
  const double late = std::accumulate(mean.end() - kOuter, mean.end(), 0.0) / kOuter;
  int rising = 0, pairs = 0;
  for (size_t i = 0; i < kSlices; ++i) {
    for (size_t j = i + 1; j < kSlices; ++j, ++pairs) rising += mean[j] > mean[i] ? 1 : -1;
  }
  constexpr double kMostlyRising = 0.6;  // Kendall's tau
  return late < 1.5 * early + 2 || rising < kMostlyRising * pairs;
}

Summary Summarize(const std::vector<RequestRecord>& records, int64_t start_ns,
                  const SummaryOptions& options) {
  Summary summary;
  if (!options.goodput.empty()) summary.goodput = 0.0;
  std::vector<const RequestRecord*> measured;
  std::vector<double> lags;
  int64_t begin = start_ns + options.warmup_ns, end = begin;
  for (const RequestRecord& record : records) {
    if (!IsMeasured(record, start_ns, options)) continue;
    if (measured.empty() && options.warmup_requests > 0) begin = std::max(begin, record.intended_ns);
    measured.push_back(&record);
    end = std::max(end, EndOf(record));
    Count(record, options, &summary);
    if (const auto lag = LatenciesOf(record).client_lag) lags.push_back(*lag);
  }
  summary.duration_s = static_cast<double>(end - begin) * 1e-9;
  if (summary.duration_s > 0) {
    summary.request_rate = static_cast<double>(summary.completed) / summary.duration_s;
    summary.output_token_rate = static_cast<double>(summary.output_tokens) / summary.duration_s;
    summary.total_token_rate =
        static_cast<double>(summary.input_tokens + summary.output_tokens) / summary.duration_s;
    if (summary.goodput) *summary.goodput /= summary.duration_s;
  }
  summary.most_output_tokens_in_a_second = MostTokensInASecond(measured, start_ns);
  summary.most_in_flight = MostInFlight(measured);
  for (const Metric metric : kMetrics) {
    summary.metrics[static_cast<size_t>(metric)] =
        SummarizeMetric(SeriesOf(measured, metric), summary.failed, options);
  }
  std::sort(lags.begin(), lags.end());
  if (!lags.empty()) summary.client_lag_p99_ms = Percentile(lags, 99);
  summary.steady = options.closed_loop || IsSteady(measured);
  return summary;
}

}  // namespace tramontane::load
