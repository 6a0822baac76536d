// Two targets under the same load, in alternating slices, so that what changes with time changes for both.
// Pure but for the slices, which are the caller's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/load/measure.h"

namespace tramontane::load {

inline constexpr int kSlicesOfEach = 4;  // A B B A A B B A

struct ComparedStatistic {
  std::string name;  // "p99_ttft_ms"
  double first = 0;
  double second = 0;
  double ratio = 0;   // the second over the first
  Interval interval;  // of the ratio, 95 %
};

struct Comparison {
  std::string order;                          // "ABBAABBA"
  std::vector<ComparedStatistic> statistics;  // those that both have
  int64_t completed[2] = {0, 0};
  int64_t failed[2] = {0, 0};
  bool stopped = false;  // before its last slice; of the slice that was cut short nothing is in it
};

// Makes slice `slice` (0 to kSlicesOfEach - 1; both targets get the same load in it) on target 0 or 1, and
// comes back when the target is idle again. CANCELLED ends the comparison with the slices before.
using MakeSlice = std::function<StatusOr<MeasuredRun>(int target, int slice)>;

StatusOr<Comparison> Compare(const SummaryOptions& options, const MakeSlice& slice);

}  // namespace tramontane::load
