// When requests are to be sent, in an open loop. One thread.
#pragma once

#include <cstdint>
#include <limits>

#include "bench/load/random.h"

namespace tramontane::load {

enum class ArrivalProcess { kPoisson, kGamma, kConstant };

struct ArrivalOptions {
  ArrivalProcess process = ArrivalProcess::kPoisson;
  double rate = std::numeric_limits<double>::infinity();  // requests a second; infinite: all at once
  double burstiness = 1;    // the shape of a gamma distribution of gaps, whose CV is 1 / sqrt(burstiness)
  double ramp_to_rate = 0;  // above 0: the rate goes there from `rate` in a straight line
  double ramp_seconds = 0;  // and stays there after these
};

// 126 years: later is no time that a run gets to, and a clock's time can be added to it.
inline constexpr double kMaxArrivalNs = 4e18;

// Gaps are drawn with mean 1 and then walked along the integral of the rate, so that a ramp keeps the kind of
// arrivals. Nothing is rescaled: a run of N requests at rate R lasts about N / R seconds, not exactly.
// Constant arrivals begin at 0, others with a first gap.
class Arrivals {
 public:
  Arrivals(const ArrivalOptions& options, uint64_t seed)
      : options_(options), random_(seed, RandomUse::kArrivals) {}

  // From the start of the run, never less than the one before, and kMaxArrivalNs at most.
  int64_t NextNs();

 private:
  double Gap();
  double SecondsAt(double expected_requests) const;

  ArrivalOptions options_;
  Random random_;
  double expected_requests_ = 0;  // the integral of the rate up to the last arrival
  bool begun_ = false;
};

}  // namespace tramontane::load
