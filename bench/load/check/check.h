// `tramontane bench --check`: the load tool against servers whose truth is known, because they log what they
// really did. Main thread; takes 15 seconds, more where something does not hold at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/status.h"

namespace tramontane::load {

struct CheckLine {
  std::string metric;
  std::string truth;
  std::string measured;
  std::string error;
  bool holds = true;  // within its bound
};

// Errors of what is timed must not exceed those of a thread that only sleeps, in the same run, by more than
// 0.3 ms in the median and 1 ms at p99 (of a gap twice those: it has two ends). What is counted must be
// exact. What a busy machine can upset has three attempts.
struct CheckReport {
  std::vector<CheckLine> lines;
  bool holds() const;
  std::string Table() const;
};

// An error: a scripted server could not be started.
StatusOr<CheckReport> RunCheck();

// Of requests sent at a constant rate to a server that stops for a while: how many have a TTFT above a
// threshold. By arithmetic alone.
struct StopCase {
  int64_t requests = 30;
  int64_t interval_ms = 100;
  int64_t service_ms = 40;  // of each request, whatever else is there
  int64_t stop_begin_ms = 575;
  int64_t stop_ms = 1000;
  int64_t threshold_ms = 165;
  int32_t cap = 0;  // in flight at most; 0: none
};
int64_t LateRequests(const StopCase& stop);

}  // namespace tramontane::load
