// RecordedSteps: decode steps that the backend has recorded, one for each of EngineLimits::RowsToRecord,
// their forward pass and their sampling apart, replayed with padding from then on: two calls instead of some
// hundred launches. Forward passes in which rows may see sinks are recorded beside them, of fewer widths.
// Engine thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/request/limits.h"
#include "engine/run/batch_builder.h"
#include "engine/run/sampling_pass.h"
#include "kernels/backend.h"
#include "kernels/core/status.h"
#include "models/op_status.h"

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
  ~RecordedSteps() {
    for (const Step& step : steps_) {
      for (const RecordingHandle& recording : {step.forward, step.forward_with_sinks, step.sampling.handle})
        if (recording.impl != nullptr) backend_.FreeRecording(recording);
    }
  }

  // `forward`, `sampling`: upload what a step of a shape needs, and give the ops of it.
  Status RecordAll(const EngineLimits& limits, const OpsOf& forward, const OpsOf& sampling) {
    for (const int32_t rows : limits.RowsToRecord()) {
      Step& step = steps_.emplace_back();
      step.sampling.rows = rows;
      TM_RETURN_IF_ERROR(Record(forward({.rows = rows}), &step.forward));
      TM_RETURN_IF_ERROR(Record(sampling({.rows = rows}), &step.sampling.handle));
    }
    const std::vector<int32_t> with_sinks = limits.RowsToRecordWithSinks();
    for (Step& step : steps_) {
      if (!std::binary_search(with_sinks.begin(), with_sinks.end(), step.rows())) continue;
      TM_RETURN_IF_ERROR(Record(forward({.rows = step.rows(), .sinks = true}), &step.forward_with_sinks));
    }
    return {};
  }
  // The narrowest that is wide enough; null where the step is not recorded.
  const Step* Find(const StepPlan& plan, bool sees_sinks) const {
    if (plan.lane != Lane::kDecode) return nullptr;
    for (const Step& step : steps_) {
      const bool has_room = !sees_sinks || step.forward_with_sinks.impl != nullptr;
      if (has_room && std::ssize(plan.rows) <= step.rows()) return &step;
    }
    return nullptr;
  }

 private:
  // The ops run once before they are recorded: see Backend::BeginRecording. Waits for them, so that host
  // memory that was uploaded is free again.
  Status Record(StatusOr<Ops> ops, RecordingHandle* recording) {
    TM_RETURN_IF_ERROR(ops.status());
    const char* const what = "recording a decode step";
    TM_RETURN_IF_ERROR(OpStatus((*ops)(), backend_, what));
    TM_RETURN_IF_ERROR(OpStatus(backend_.BeginRecording(), backend_, what));
    TM_RETURN_IF_ERROR(OpStatus((*ops)(), backend_, what));
    TM_RETURN_IF_ERROR(OpStatus(backend_.EndRecording(recording), backend_, what));
    return OpStatus(backend_.WaitFence(backend_.RecordFence()), backend_, what);
  }

  Backend& backend_;
  std::vector<Step> steps_;  // by rows
};

}  // namespace tramontane
