// The highest rate at which a service keeps its limits. Pure: what a probe does is the caller's.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/load/slo.h"
#include "kernels/core/status.h"

namespace tramontane::load {

// One run of the search, and how it came out.
struct Probe {
  double rate = 0;
  bool is_confirmation = false;
  bool holds = false;  // every clause, and what is in flight did not keep growing
  bool steady = true;
  std::vector<SloVerdict> verdicts;
};

struct FoundRate {
  std::optional<double> rate;  // nothing where no rate held, or every one that was tried did
  std::vector<Probe> probes;   // in the order they were made
  std::string why;             // where there is no rate
};

// Runs at `rate`. Probes that look for the rate have one seed, so that they differ in the rate alone; the
// k-th confirmation (from 1) has another.
using MakeProbe = std::function<StatusOr<Probe>(double rate, int confirmation)>;

// Doubles or halves from `first` until the rate is between one that holds and one that does not, then bisects
// in the logarithm until they are 2 % apart, then confirms the lower one three times; where that fails it
// goes down by 2 % and confirms anew. A probe that is CANCELLED ends the search with what was found until
// then; another fault is the search's own.
StatusOr<FoundRate> FindRate(double first, const MakeProbe& probe);

}  // namespace tramontane::load
