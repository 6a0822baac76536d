// SimulatedRunner: a ModelRunner that computes nothing and takes the time a device would take, on a clock of
// its own. The thread that steps the engine.
//
// The device runs one step after the other: a step begins when it is queued or when the one before it ends,
// whichever is later, and Collect lets the clock go on to its end. So an engine with two steps in flight
// overlaps here what it would overlap there; what the host does itself takes no time.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "bench/simulate/roofline.h"
#include "engine/run/model_runner.h"
#include "engine/threads/clock.h"

namespace tramontane::simulate {

// The engine's clock. Goes on only when it is told. One thread moves it, any reads it.
class EngineTime final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_.load(std::memory_order_relaxed); }
  void AdvanceTo(int64_t ns) {
    if (ns > NowNs()) now_ns_.store(ns, std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t> now_ns_{1};  // 0 means "did not happen" in Timings
};

class SimulatedRunner final : public ModelRunner {
 public:
  // `step_ns`: how long a plan takes on the device. `on_token`: a row has given a token at that time.
  SimulatedRunner(EngineTime& clock, std::function<int64_t(const StepPlan&)> step_ns,
                  std::function<void(const StepRow&, int64_t now_ns)> on_token);

  StatusOr<StepTicket> Forward(const StepPlan& plan) override;
  Status Sample(StepTicket ticket, const SampleInputs& inputs) override;
  StatusOr<StepResult> Collect(StepTicket ticket) override;

 private:
  struct OpenStep {
    StepTicket ticket;
    StepPlan plan;
    int64_t end_ns = 0;
  };

  EngineTime& clock_;
  const std::function<int64_t(const StepPlan&)> step_ns_;
  const std::function<void(const StepRow&, int64_t)> on_token_;
  int64_t device_free_ns_ = 0;
  std::deque<OpenStep> open_;  // at most two
};

}  // namespace tramontane::simulate
