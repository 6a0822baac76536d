// ScriptedModel: a ModelRunner that says a known text, as slowly as the test likes.
//
// Any thread sets; the engine's thread steps. Always: what a sequence says depends on its positions alone, so
// a test knows it beforehand, whatever was preempted, forked or joined on the way.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/run/model_runner.h"

namespace tramontane {

// Says script[p % size] at absolute position p, whatever was asked.
class ScriptedModel final : public ModelRunner {
 public:
  explicit ScriptedModel(std::vector<int32_t> script) : script_(std::move(script)) {}

  // ---- test ----
  int32_t TokenAt(int64_t position) const { return script_[static_cast<size_t>(position) % script_.size()]; }
  // Steps wait from now on, but for as many as are allowed.
  void Hold();
  void AllowSteps(int64_t steps);
  void Release();
  // At least so long does each step take.
  void SetStepTime(int64_t microseconds);
  // The row that says the token at this position has logits that are not finite. -1: none.
  void FailAt(int64_t position);
  // Of the last row that was computed.
  ShareParams last_share();

  // ---- engine thread ----
  StatusOr<StepTicket> Forward(const StepPlan& plan) override;
  Status Sample(StepTicket, const SampleInputs& inputs) override;
  StatusOr<StepResult> Collect(StepTicket) override;

 private:
  WantResult Result(Want::Kind kind, int32_t token, int32_t top) const;

  const std::vector<int32_t> script_;
  std::mutex mutex_;  // guards the next five
  std::condition_variable changed_;
  int64_t allowed_steps_ = INT64_MAX;
  int64_t step_time_us_ = 0;
  int64_t fail_at_ = -1;
  ShareParams last_share_;
  StepResult result_;
};

}  // namespace tramontane
