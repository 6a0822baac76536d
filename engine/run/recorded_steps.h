// RecordedSteps: decode steps that the backend has recorded, one for each of EngineLimits::RowsToRecord,
// their forward pass and their sampling apart, replayed with padding from then on: two calls instead of some
// hundred launches. Forward passes in which rows may see sinks are recorded beside them, of fewer widths.
// Engine thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/request/limits.h"
#include "engine/run/batch_builder.h"
#include "engine/run/sampling_pass.h"
#include "kernels/backend.h"
#include "kernels/core/status.h"

namespace tramontane {

class RecordedSteps {
 public:
  struct Step {
    RecordingHandle forward;
    RecordingHandle forward_with_sinks;  // of no width but EngineLimits::RowsToRecordWithSinks
    SamplingPass::Recorded sampling;
    int32_t rows() const { return sampling.rows; }
  };
  using Ops = std::function<OpCode()>;
  using OpsOf = std::function<StatusOr<Ops>(const RecordedShape&)>;

  explicit RecordedSteps(Backend& backend) : backend_(backend) {}
  ~RecordedSteps();

  // `forward`, `sampling`: upload what a step of a shape needs, and give the ops of it.
  Status RecordAll(const EngineLimits& limits, const OpsOf& forward, const OpsOf& sampling);
  // The narrowest that is wide enough; null where the step is not recorded.
  const Step* Find(const StepPlan& plan, bool sees_sinks) const;

 private:
  Status Record(StatusOr<Ops> ops, RecordingHandle* recording);

  Backend& backend_;
  std::vector<Step> steps_;  // by rows
};

}  // namespace tramontane
