// StepMetrics: how long steps took and how many tokens they had, by lane, for /metrics.
//
// Threads: OnStep from the engine thread, the rest from any. No lock (histogram.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/output/histogram.h"
#include "engine/schedule/step_plan.h"

namespace tramontane {

class StepMetrics {
 public:
  static constexpr std::array<const char*, 2> kLanes = {"prefill", "decode"};

  // REQUIRES: it was no idle step.
  void OnStep(const StepPlan& plan, int64_t ns) {
    const size_t lane = plan.lane == Lane::kPrefill ? 0 : 1;
    seconds_[lane].ObserveNs(ns);
    tokens_[lane].Observe(static_cast<double>(plan.tokens));
    all_tokens_.Observe(static_cast<double>(plan.tokens));
  }

  const Histogram& seconds(size_t lane) const { return seconds_[lane]; }
  const Histogram& tokens(size_t lane) const { return tokens_[lane]; }
  const Histogram& all_tokens() const { return all_tokens_; }  // of both lanes

 private:
  static std::vector<double> StepBounds() {
    return {.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5};
  }
  static std::vector<double> TokenBounds() {
    return {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
  }

  std::array<Histogram, 2> seconds_ = {Histogram(StepBounds()), Histogram(StepBounds())};
  std::array<Histogram, 2> tokens_ = {Histogram(TokenBounds()), Histogram(TokenBounds())};
  Histogram all_tokens_{TokenBounds()};
};

}  // namespace tramontane
