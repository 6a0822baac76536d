#include "bench/load/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "bench/load/parse.h"

namespace tramontane::load {
namespace {

struct Rank {
  int64_t below = 0;
  int64_t above = 0;
  double share = 0;  // of the one above
};

Rank RankOf(int64_t samples, double p) {
  const double at = p / 100.0 * static_cast<double>(samples - 1);
  Rank rank;
  rank.below = static_cast<int64_t>(std::floor(at));
  rank.above = std::min(rank.below + 1, samples - 1);
  rank.share = at - static_cast<double>(rank.below);
  return rank;
}

// As numpy: from the nearer end, so that neither end is missed by a rounding.
double Between(double a, double b, double share) {
  return share >= 0.5 ? b - (b - a) * (1.0 - share) : a + (b - a) * share;
}

}  // namespace

double Percentile(const std::vector<double>& sorted, double p) {
  const Rank rank = RankOf(static_cast<int64_t>(sorted.size()), p);
  return Between(sorted[static_cast<size_t>(rank.below)], sorted[static_cast<size_t>(rank.above)],
                 rank.share);
}

double Mean(const std::vector<double>& samples) {
  if (samples.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
}

double StandardDeviation(const std::vector<double>& samples) {
  const double mean = Mean(samples);
  double squares = 0;
  for (const double sample : samples) squares += (sample - mean) * (sample - mean);
  return std::sqrt(squares / static_cast<double>(samples.size()));
}

bool HasFewBeyond(int64_t samples, double p) {
  constexpr double kEnough = 10, kRounding = 1e-9;
  return static_cast<double>(samples) * (1.0 - p / 100.0) < kEnough - kRounding;
}

std::optional<double> CensoredPercentile(const std::vector<double>& sorted, int64_t failures, double p) {
  const auto known = static_cast<int64_t>(sorted.size());
  if (known + failures == 0) return std::nullopt;
  const Rank rank = RankOf(known + failures, p);
  const int64_t needed = rank.share > 0 ? rank.above : rank.below;
  if (needed >= known) return std::nullopt;
  return Between(sorted[static_cast<size_t>(rank.below)], sorted[static_cast<size_t>(needed)], rank.share);
}

std::string PercentileName(double p) { return "p" + NumberText(p); }

}  // namespace tramontane::load
