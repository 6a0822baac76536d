#include "bench/load/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "bench/load/random.h"
#include "bench/load/statistics.h"

namespace tramontane::load {
namespace {

constexpr size_t kMostBins = 65'536;
constexpr double kMostWork = 2e8;  // samples drawn in all replicates

// Autocovariances of the lags 0 to `most`.
std::vector<double> Autocovariances(const std::vector<double>& series, int64_t most) {
  const auto n = static_cast<int64_t>(series.size());
  const double mean = Mean(series);
  std::vector<double> result;
  for (int64_t lag = 0; lag <= most; ++lag) {
    double sum = 0;
    for (int64_t i = lag; i < n; ++i) {
      sum += (series[static_cast<size_t>(i)] - mean) * (series[static_cast<size_t>(i - lag)] - mean);
    }
    result.push_back(sum / static_cast<double>(n));
  }
  return result;
}

// The lag from which on `in_a_row` correlations are within noise.
int64_t LastCorrelatedLag(const std::vector<double>& covariances, double noise, int64_t in_a_row) {
  int64_t quiet = 0;
  for (size_t lag = 1; lag < covariances.size(); ++lag) {
    quiet = std::fabs(covariances[lag]) < noise * covariances[0] ? quiet + 1 : 0;
    if (quiet == in_a_row) return static_cast<int64_t>(lag) - in_a_row;
  }
  return static_cast<int64_t>(covariances.size()) - 1;
}

// The samples of all requests in bins whose order is that of their values.
struct Binned {
  std::vector<double> values;               // ascending, one a bin
  std::vector<std::vector<uint32_t>> bins;  // by request
  std::vector<double> sums;                 // of samples, by request
  int64_t count = 0;
};

Binned BinnedSamples(const SampleSeries& series) {
  Binned binned;
  std::vector<double> sorted;
  for (const auto& samples : series) sorted.insert(sorted.end(), samples.begin(), samples.end());
  binned.count = static_cast<int64_t>(sorted.size());
  std::sort(sorted.begin(), sorted.end());
  if (sorted.size() <= kMostBins) {
    binned.values = std::move(sorted);
  } else {
    for (size_t i = 0; i < kMostBins; ++i) {
      const double share = static_cast<double>(i) / static_cast<double>(kMostBins - 1);
      binned.values.push_back(Percentile(sorted, 100.0 * share));
    }
  }
  const auto end = std::unique(binned.values.begin(), binned.values.end());
  binned.values.erase(end, binned.values.end());
  for (const auto& samples : series) {
    std::vector<uint32_t> bins;
    for (const double sample : samples) {
      const auto at = std::lower_bound(binned.values.begin(), binned.values.end(), sample);
      const auto last = static_cast<std::ptrdiff_t>(binned.values.size()) - 1;
      bins.push_back(static_cast<uint32_t>(std::min(at - binned.values.begin(), last)));
    }
    binned.bins.push_back(std::move(bins));
    binned.sums.push_back(std::accumulate(samples.begin(), samples.end(), 0.0));
  }
  return binned;
}

// One replicate: how often each bin came, and the statistics of it.
class Replicate {
 public:
  explicit Replicate(const Binned& binned)
      : binned_(binned), counts_(binned.values.size()), up_to_(counts_.size()) {}

  void Draw(int64_t block, Random& random) {
    std::fill(counts_.begin(), counts_.end(), 0);
    sum_ = 0;
    count_ = 0;
    const auto requests = static_cast<int64_t>(binned_.bins.size());
    for (int64_t drawn = 0; drawn < requests;) {
      const int64_t begin = random.Whole(0, requests - block);
      const int64_t end = begin + std::min(block, requests - drawn);
      for (int64_t i = begin; i < end; ++i) Add(static_cast<size_t>(i));
      drawn += end - begin;
    }
    std::partial_sum(counts_.begin(), counts_.end(), up_to_.begin(), std::plus<int64_t>());
  }
  int64_t count() const { return count_; }

  double Value(const Statistic& statistic) const {
    const double n = static_cast<double>(count_);
    if (statistic.is_mean) return sum_ / n;
    const double at = statistic.percentile / 100.0 * (n - 1);
    const auto below = static_cast<int64_t>(at);
    const double low = SampleAt(below), high = SampleAt(std::min(below + 1, count_ - 1));
    return low + (high - low) * (at - static_cast<double>(below));
  }

 private:
  void Add(size_t request) {
    for (const uint32_t bin : binned_.bins[request]) ++counts_[bin];
    count_ += static_cast<int64_t>(binned_.bins[request].size());
    sum_ += binned_.sums[request];
  }
  double SampleAt(int64_t rank) const {
    const auto bin = std::upper_bound(up_to_.begin(), up_to_.end(), rank) - up_to_.begin();
    return binned_.values[static_cast<size_t>(bin)];
  }

  const Binned& binned_;
  std::vector<uint32_t> counts_;
  std::vector<int64_t> up_to_;  // samples in this bin and those below
  double sum_ = 0;
  int64_t count_ = 0;
};

// What the block length is measured on: a number a request, requests without a sample left out.
std::vector<double> RequestMeans(const SampleSeries& series) {
  std::vector<double> means;
  for (const auto& samples : series) {
    if (!samples.empty()) means.push_back(Mean(samples));
  }
  return means;
}

}  // namespace

int64_t BlockLength(const std::vector<double>& series) {
  const double n = static_cast<double>(series.size());
  if (n < 8) return 1;
  const auto most_block = static_cast<int64_t>(std::ceil(std::min(3.0 * std::sqrt(n), n / 3.0)));
  const auto in_a_row = static_cast<int64_t>(std::max(5.0, std::ceil(std::sqrt(std::log10(n)))));
  const auto most_lag =
      std::min(static_cast<int64_t>(n) - 1, static_cast<int64_t>(std::ceil(2.0 * std::sqrt(n))) + in_a_row);
  const std::vector<double> covariances = Autocovariances(series, most_lag);
  if (covariances[0] <= 0) return 1;
  const int64_t correlated = LastCorrelatedLag(covariances, 2.0 * std::sqrt(std::log10(n) / n), in_a_row);
  const auto window = std::clamp<int64_t>(2 * std::max<int64_t>(1, correlated), 1, most_lag);
  double spectrum = covariances[0], slope = 0;  // at frequency 0, with a flat-top window
  for (int64_t lag = 1; lag <= window; ++lag) {
    const double share = static_cast<double>(lag) / static_cast<double>(window);
    const double weight = share <= 0.5 ? 1.0 : 2.0 * (1.0 - share);
    spectrum += 2.0 * weight * covariances[static_cast<size_t>(lag)];
    slope += 2.0 * weight * static_cast<double>(lag) * covariances[static_cast<size_t>(lag)];
  }
  if (spectrum <= 0) return most_block;
  const double length = std::cbrt(2.0 * slope * slope / (4.0 / 3.0 * spectrum * spectrum)) * std::cbrt(n);
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(length)), 1, most_block);
}

std::vector<std::vector<double>> Replicates(const SampleSeries& series,
                                            const std::vector<Statistic>& statistics,
                                            const BootstrapOptions& options) {
  std::vector<std::vector<double>> result(statistics.size());
  const Binned binned = BinnedSamples(series);
  if (binned.count == 0) return result;
  constexpr double kLeastReplicates = 200;
  const double affordable = std::max(kLeastReplicates, kMostWork / static_cast<double>(binned.count));
  const auto replicates = std::min<int64_t>(options.most_replicates, static_cast<int64_t>(affordable));
  const int64_t block = std::min(BlockLength(RequestMeans(series)), static_cast<int64_t>(series.size()));
  Random random(options.seed, RandomUse::kBootstrap);
  Replicate replicate(binned);
  for (int64_t i = 0; i < replicates; ++i) {
    replicate.Draw(block, random);
    if (replicate.count() == 0) continue;  // drew only requests without a sample
    for (size_t s = 0; s < statistics.size(); ++s) result[s].push_back(replicate.Value(statistics[s]));
  }
  return result;
}

std::optional<Interval> IntervalOf(std::vector<double> replicates) {
  if (replicates.empty()) return std::nullopt;
  std::sort(replicates.begin(), replicates.end());
  return Interval{Percentile(replicates, 2.5), Percentile(replicates, 97.5)};
}

std::optional<Interval> RatioInterval(const std::vector<double>& first, const std::vector<double>& second) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
    if (first[i] > 0) ratios.push_back(second[i] / first[i]);
  }
  return IntervalOf(std::move(ratios));
}

}  // namespace tramontane::load
