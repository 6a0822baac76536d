// `tramontane bench --check`: whether this tool's times hold on this machine. It sends to a server in this
// process that notes when it wrote, and stands beside a thread that only sleeps: a machine whose sleepers
// wake late adds as much to any time. Main thread; 3 seconds, up to 9 where something does not hold at once.
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

// Errors must not exceed the sleeping thread's by more than 0.3 ms in the median and 1 ms at p99 (of a gap
// twice those: it has two ends), and every answer must be whole. Three attempts, since a busy machine can
// upset one.
struct CheckReport {
  std::vector<CheckLine> lines;
  bool holds() const;
  std::string Table() const;
};

// An error: the server could not be started.
StatusOr<CheckReport> RunCheck(int64_t requests = 200);

}  // namespace tramontane::load
