#include "bench/simulate/simulate.h"

#include <charconv>
#include <string>
#include <utility>

#include "bench/simulate/simulated_runner.h"
#include "engine/signal.h"
#include "kernels/core/check.h"

namespace tramontane::simulate {
namespace {

constexpr int32_t kVocabulary = 16;  // nobody reads the tokens

Request RequestOf(size_t index, const SimulatedRequest& asked, int64_t now_ns) {
  Request request;
  request.id = std::to_string(index);
  request.prompt.assign(static_cast<size_t>(asked.input_tokens), 0);
  request.sampling.seed = index;
  request.stopping.max_tokens = asked.output_tokens;
  request.stopping.ignore_eos = true;
  request.received_ns = now_ns;
  return request;
}

size_t IndexOf(const StepRow& row) {
  const std::string& id = row.sequence->request->id;
  size_t index = 0;
  std::from_chars(id.data(), id.data() + id.size(), index);
  return index;
}

}  // namespace

StatusOr<SimulatedRun> Simulate(const SimulatedModel& model, const DeviceRoofline& device,
                                const EngineLimits& limits, const std::vector<SimulatedRequest>& requests) {
  SimulatedRun run;
  run.records.resize(requests.size());
  SimulatedClock clock;
  const int64_t start_ns = clock.NowNs();
  const PrefillCost keys(model.kv_layout, limits.attended_keys_per_token);
  SimulatedRunner runner(
      clock, [&](const StepPlan& plan) { return StepNs(plan, model.work, keys, device); },
      [&](const StepRow& row, int64_t now_ns) {
        run.records[IndexOf(row)].token_ns.push_back(now_ns - start_ns);
      });
  Engine engine(limits, {kVocabulary, {}, model.kv_layout}, runner, nullptr, clock);
  for (size_t next = 0; next < requests.size() || !engine.idle();) {
    for (; next < requests.size() && start_ns + requests[next].arrival_ns <= clock.NowNs(); ++next) {
      run.records[next].arrival_ns = requests[next].arrival_ns;
      const int64_t arrival_ns = start_ns + requests[next].arrival_ns;
      (void)engine.Submit(RequestOf(next, requests[next], arrival_ns), nullptr);
    }
    const StepOutcome outcome = engine.Step();
    TM_RETURN_IF_ERROR(engine.fatal());
    if (outcome == StepOutcome::kNoRoom) engine.WaitForWork(Signal::kForever);
    if (outcome != StepOutcome::kNothingToDo) continue;
    // Done, or the output thread is still at it.
    if (next < requests.size()) clock.AdvanceTo(start_ns + requests[next].arrival_ns);
  }
  run.load = engine.Load();
  return run;
}

}  // namespace tramontane::simulate
