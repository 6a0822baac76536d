#include "models/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tramontane {
namespace {

double MagnitudeOf(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// How much of a frequency is kept, 1 to 0, from the turns that its pair makes.
double KeptByLlama3(double frequency, const RopeScaling& scaling) {
  const double turns = scaling.original_context * frequency / (2.0 * std::numbers::pi);
  return std::clamp((turns - scaling.slow) / (scaling.fast - scaling.slow), 0.0, 1.0);
}

// The pair (not whole) that makes so many turns within the original context.
double PairOfTurns(double turns, double theta, int32_t head_dim, const RopeScaling& scaling) {
  return head_dim * std::log(scaling.original_context / (turns * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(theta));
}

struct Band {
  double first;  // pairs up to here are kept
  double last;   // from here on they are stretched
};

Band YarnBand(double theta, int32_t head_dim, const RopeScaling& scaling) {
  constexpr double kLeastWidth = 0.001;
  Band band = {PairOfTurns(scaling.fast, theta, head_dim, scaling),
               PairOfTurns(scaling.slow, theta, head_dim, scaling)};
  if (scaling.truncate) band = {std::floor(band.first), std::ceil(band.last)};
  band = {std::max(band.first, 0.0), std::min(band.last, head_dim - 1.0)};
  if (band.first == band.last) band.last += kLeastWidth;
  return band;
}

}  // namespace

double YarnMagnitude(double factor, double mscale, double mscale_all_dim) {
  return MagnitudeOf(factor, mscale) / MagnitudeOf(factor, mscale_all_dim);
}

std::vector<double> RotaryFrequencies(double theta, int32_t head_dim, const RopeScaling& scaling) {
  std::vector<double> frequencies(static_cast<size_t>(head_dim / 2));
  const Band band = scaling.kind == RopeScaling::Kind::kYarn ? YarnBand(theta, head_dim, scaling) : Band{};
  for (int32_t i = 0; i < head_dim / 2; ++i) {
    double& frequency = frequencies[static_cast<size_t>(i)];
    frequency = std::pow(theta, -2.0 * i / head_dim);
    if (scaling.kind == RopeScaling::Kind::kNone) continue;
    if (scaling.kind == RopeScaling::Kind::kDivided) {
      frequency /= double{scaling.divisors[static_cast<size_t>(i)]};
      continue;
    }
    const double kept = scaling.kind == RopeScaling::Kind::kLlama3
                            ? KeptByLlama3(frequency, scaling)
                            : 1.0 - std::clamp((i - band.first) / (band.last - band.first), 0.0, 1.0);
    frequency = frequency * kept + frequency / scaling.factor * (1.0 - kept);
  }
  return frequencies;
}

}  // namespace tramontane
