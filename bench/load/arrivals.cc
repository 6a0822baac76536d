#include "bench/load/arrivals.h"

#include <algorithm>
#include <cmath>

namespace tramontane::load {

int64_t Arrivals::NextNs() {
  if (std::isinf(options_.rate)) return 0;
  const bool at_zero = options_.process == ArrivalProcess::kConstant && !begun_;
  begun_ = true;
  if (!at_zero) expected_requests_ += Gap();
  const double ns = 1e9 * SecondsAt(expected_requests_);
  return std::llround(std::min(ns, kMaxArrivalNs));
}

double Arrivals::Gap() {
  switch (options_.process) {
    case ArrivalProcess::kConstant:
      return 1.0;
    case ArrivalProcess::kPoisson:
      return random_.Exponential();
    case ArrivalProcess::kGamma:
      break;
  }
  return random_.Gamma(options_.burstiness) / options_.burstiness;
}

// The t at which the integral of the rate is `expected_requests`.
double Arrivals::SecondsAt(double expected_requests) const {
  const double from = options_.rate, to = options_.ramp_to_rate, length = options_.ramp_seconds;
  if (to <= 0 || length <= 0) return expected_requests / from;
  const double in_ramp = 0.5 * (from + to) * length;
  if (expected_requests >= in_ramp) return length + (expected_requests - in_ramp) / to;
  const double half_slope = 0.5 * (to - from) / length;  // half_slope t^2 + from t = expected_requests
  // This form of the root holds for a slope of 0 too.
  return 2.0 * expected_requests / (from + std::sqrt(from * from + 4.0 * half_slope * expected_requests));
}

}  // namespace tramontane::load
