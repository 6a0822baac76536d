#include "bench/load/compare.h"

#include <algorithm>
#include <utility>

#include "bench/load/statistics.h"

namespace tramontane::load {
namespace {

// Samples of one target, its slices one after the other.
SampleSeries AllOf(const std::vector<MeasuredRun>& runs, const SummaryOptions& options, Metric metric) {
  std::vector<const RequestRecord*> records;
  for (const MeasuredRun& run : runs) {
    for (const RequestRecord& record : run.result.records) {
      if (IsMeasured(record, run.result.start_ns, options)) records.push_back(&record);
    }
  }
  return SeriesOf(records, metric);
}

std::vector<double> Sorted(const SampleSeries& series) {
  std::vector<double> all;
  for (const auto& samples : series) all.insert(all.end(), samples.begin(), samples.end());
  std::sort(all.begin(), all.end());
  return all;
}

double ValueOf(const std::vector<double>& sorted, const Statistic& statistic) {
  return statistic.is_mean ? Mean(sorted) : Percentile(sorted, statistic.percentile);
}

void CompareMetric(const SampleSeries& first, const SampleSeries& second, Metric metric,
                   const SummaryOptions& options, Comparison* comparison) {
  const std::vector<double> a = Sorted(first), b = Sorted(second);
  if (a.empty() || b.empty()) return;
  std::vector<Statistic> statistics = {Statistic::OfMean(), Statistic::OfPercentile(50)};
  std::vector<std::string> names = {"mean", "median"};
  for (const double p : options.percentiles) {
    if (p == 50) continue;
    statistics.push_back(Statistic::OfPercentile(p));
    names.push_back(PercentileName(p));
  }
  const auto of_first = Replicates(first, statistics, {options.seed});
  const auto of_second = Replicates(second, statistics, {Mixed(options.seed)});
  for (size_t i = 0; i < statistics.size(); ++i) {
    ComparedStatistic row;
    row.name = names[i] + "_" + std::string(MetricName(metric)) + "_ms";
    row.first = ValueOf(a, statistics[i]);
    row.second = ValueOf(b, statistics[i]);
    const auto interval = RatioInterval(of_first[i], of_second[i]);
    if (row.first <= 0 || !interval) continue;
    row.ratio = row.second / row.first;
    row.interval = *interval;
    comparison->statistics.push_back(std::move(row));
  }
}

}  // namespace

StatusOr<Comparison> Compare(const SummaryOptions& options, const MakeSlice& slice) {
  Comparison comparison;
  std::vector<MeasuredRun> runs[2];
  for (int i = 0; i < 2 * kSlicesOfEach; ++i) {
    const int pair = i / 2, turn = i % 2;
    const int target = pair % 2 == 0 ? turn : 1 - turn;
    StatusOr<MeasuredRun> made = slice(target, pair);
    comparison.stopped = !made.ok() && made.status().code() == StatusCode::kCancelled;
    if (comparison.stopped) break;
    TM_ASSIGN_OR_RETURN(MeasuredRun run, std::move(made));
    comparison.order += target == 0 ? 'A' : 'B';
    comparison.completed[target] += run.summary.completed;
    comparison.failed[target] += run.summary.failed;
    runs[target].push_back(std::move(run));
  }
  for (const Metric metric : kMetrics) {
    CompareMetric(AllOf(runs[0], options, metric), AllOf(runs[1], options, metric), metric, options,
                  &comparison);
  }
  return comparison;
}

}  // namespace tramontane::load
