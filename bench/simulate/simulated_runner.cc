#include "bench/simulate/simulated_runner.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane::simulate {
namespace {

constexpr int32_t kToken = 3;  // every answer consists of it

}  // namespace

SimulatedRunner::SimulatedRunner(EngineTime& clock, std::function<int64_t(const StepPlan&)> step_ns,
                                 std::function<void(const StepRow&, int64_t now_ns)> on_token)
    : clock_(clock), step_ns_(std::move(step_ns)), on_token_(std::move(on_token)) {}

StatusOr<StepTicket> SimulatedRunner::Forward(const StepPlan& plan) {
  device_free_ns_ = std::max(device_free_ns_, clock_.NowNs()) + step_ns_(plan);
  open_.push_back({StepTicket{plan.step}, plan, device_free_ns_});
  return open_.back().ticket;
}

Status SimulatedRunner::Sample(StepTicket, const SampleInputs&) { return {}; }

StatusOr<StepResult> SimulatedRunner::Collect(StepTicket ticket) {
  TM_CHECK(!open_.empty() && open_.front().ticket.id == ticket.id, "step %lld is not the oldest",
           static_cast<long long>(ticket.id));
  clock_.AdvanceTo(open_.front().end_ns);
  StepResult result;
  const StepPlan& plan = open_.front().plan;
  for (const Want& want : plan.wants) result.wants.push_back({.kind = want.kind, .token = {kToken, 0.0f}});
  for (const StepRow& row : plan.rows) {
    if (plan.Draws(row) > 0) on_token_(row, clock_.NowNs());
  }
  open_.pop_front();
  return result;
}

}  // namespace tramontane::simulate
