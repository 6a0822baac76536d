#include "tests/server/scripted_model.h"

#include <chrono>
#include <thread>

namespace tramontane {

void ScriptedModel::Hold() {
  std::lock_guard lock(mutex_);
  allowed_steps_ = 0;
}

void ScriptedModel::AllowSteps(int64_t steps) {
  std::lock_guard lock(mutex_);
  allowed_steps_ += steps;
  changed_.notify_all();
}

void ScriptedModel::Release() {
  std::lock_guard lock(mutex_);
  allowed_steps_ = INT64_MAX;
  changed_.notify_all();
}

void ScriptedModel::SetStepTime(int64_t microseconds) {
  std::lock_guard lock(mutex_);
  step_time_us_ = microseconds;
}

void ScriptedModel::FailAt(int64_t position) {
  std::lock_guard lock(mutex_);
  fail_at_ = position;
}

ShareParams ScriptedModel::last_share() {
  std::lock_guard lock(mutex_);
  return last_share_;
}

StatusOr<StepTicket> ScriptedModel::Forward(const StepPlan& plan) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return allowed_steps_ > 0; });
  if (allowed_steps_ != INT64_MAX) --allowed_steps_;
  const int64_t step_time_us = step_time_us_;

  result_.wants.clear();
  for (const StepRow& row : plan.rows) {
    last_share_ = row.sequence->request->share;
    const OutputParams& output = row.sequence->request->output;
    for (const Want& want : plan.WantsOf(row)) {
      const bool draws = want.kind == Want::Kind::kDraw;
      const int32_t token = draws ? TokenAt(want.position + 1) : want.id;
      result_.wants.push_back(Result(want.kind, want.position + 1 == fail_at_ ? -1 : token,
                                     draws ? output.logprobs : output.prompt_logprobs));
    }
  }
  lock.unlock();
  if (step_time_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(step_time_us));
  return StepTicket{plan.step};
}

WantResult ScriptedModel::Result(Want::Kind kind, int32_t token, int32_t top) const {
  WantResult scored = {.kind = kind};
  scored.token = {token, -0.5f};
  scored.rank = 1;
  for (int32_t i = 0; i < top; ++i) scored.top.push_back({token + i, -0.5f - static_cast<float>(i)});
  return scored;
}

Status ScriptedModel::Sample(StepTicket, const SampleInputs&) { return Status::Ok(); }

StatusOr<StepResult> ScriptedModel::Collect(StepTicket) { return std::move(result_); }

}  // namespace tramontane
