// Intervals by moving block bootstrap: samples of neighbouring requests are not independent (they stood in
// one queue), so whole stretches of requests in arrival order are drawn anew. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tramontane::load {

struct Interval {
  double low = 0;
  double high = 0;
};

// Samples by request in arrival order: none, one, or many (ITL, whose requests stay whole).
using SampleSeries = std::vector<std::vector<double>>;

// A statistic of samples: their mean, or a percentile.
struct Statistic {
  bool is_mean = false;
  double percentile = 50;  // where it is no mean

  static Statistic OfMean() { return {true, 0}; }
  static Statistic OfPercentile(double p) { return {false, p}; }
};

struct BootstrapOptions {
  uint64_t seed = 0;
  int32_t most_replicates = 1000;  // fewer, down to 200, where there are very many samples
};

// How many neighbouring requests one block has: the length that minimises the error of the mean's variance by
// the estimate of Politis and White (2004, as corrected 2009), from the series' own autocorrelation.
int64_t BlockLength(const std::vector<double>& series);

// Each statistic's value in each replicate: [statistics][replicates]. Of more than 65,536 samples a
// percentile is read from as many quantiles of them. Empty rows where there is no sample.
std::vector<std::vector<double>> Replicates(const SampleSeries& series,
                                            const std::vector<Statistic>& statistics,
                                            const BootstrapOptions& options);

// From the 2.5th to the 97.5th percentile of replicates; nothing without any.
std::optional<Interval> IntervalOf(std::vector<double> replicates);
// The same of the ratio of two independent statistics, the second over the first.
std::optional<Interval> RatioInterval(const std::vector<double>& first, const std::vector<double>& second);

}  // namespace tramontane::load
