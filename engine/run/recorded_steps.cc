#include "engine/run/recorded_steps.h"

#include <algorithm>

#include "models/op_status.h"

namespace tramontane {

RecordedSteps::~RecordedSteps() {
  for (const Step& step : steps_) {
    for (const RecordingHandle& recording : {step.forward, step.forward_with_sinks, step.sampling.handle})
      if (recording.impl != nullptr) backend_.FreeRecording(recording);
  }
}

Status RecordedSteps::RecordAll(const EngineLimits& limits, const OpsOf& forward, const OpsOf& sampling) {
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

// The ops run once before they are recorded: see Backend::BeginRecording. Waits for them, so that host memory
// that was uploaded is free again.
Status RecordedSteps::Record(StatusOr<Ops> ops, RecordingHandle* recording) {
  TM_RETURN_IF_ERROR(ops.status());
  const char* const what = "recording a decode step";
  TM_RETURN_IF_ERROR(OpStatus((*ops)(), backend_, what));
  TM_RETURN_IF_ERROR(OpStatus(backend_.BeginRecording(), backend_, what));
  TM_RETURN_IF_ERROR(OpStatus((*ops)(), backend_, what));
  TM_RETURN_IF_ERROR(OpStatus(backend_.EndRecording(recording), backend_, what));
  return OpStatus(backend_.WaitFence(backend_.RecordFence()), backend_, what);
}

const RecordedSteps::Step* RecordedSteps::Find(const StepPlan& plan, bool sees_sinks) const {
  if (plan.lane != Lane::kDecode) return nullptr;
  for (const Step& step : steps_) {
    const bool has_room = !sees_sinks || step.forward_with_sinks.impl != nullptr;
    if (has_room && std::ssize(plan.rows) <= step.rows()) return &step;
  }
  return nullptr;
}

}  // namespace tramontane
