// MaskWaits: choices whose next token waits for a mask, which the mask workers fill beside the forward pass.
//
// A step waits a little for the masks of its rows, where the device computes meanwhile, and fills some of
// them itself; a row whose mask was not filled in time sits the step out and is computed again, and so does
// one whose grammar is still to be compiled. Tokens depend on none of that. Engine thread.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/life/constrain/mask_workers.h"
#include "engine/life/engine_load.h"
#include "engine/life/live_request.h"
#include "engine/request/limits.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/step_plan.h"
#include "engine/threads/signal.h"

namespace tramontane {

class MaskWaits {
 public:
  // What is here is borrowed; `wake` is notified when a mask is filled.
  MaskWaits(const EngineLimits& limits, Scheduler& scheduler, Signal& wake, EngineLoad& counters);

  // Choices that cannot go on, and why: whoever asked ends them, which calls Abandon.
  struct Failure {
    LiveChoice* choice = nullptr;
    Status why;
  };
  using Failures = std::vector<Failure>;

  bool any_held() const { return !held_.empty(); }

  // Until the masks of the plan's rows are filled, or for as long as a step may wait for them; then those
  // that are not sit this step out.
  [[nodiscard]] Failures Wait(const StepPlan& plan);
  [[nodiscard]] Failures ResumeWhatIsReady();
  // A choice that the scheduler may have held because it preempted it while its mask was being filled.
  void Note(LiveChoice& choice);
  // The choice has taken a token: its next mask is asked for. An error: it cannot go on.
  [[nodiscard]] Status Follow(LiveChoice& choice, int32_t token);
  void Abandon(LiveChoice& choice);

 private:
  static bool IsWorthWaiting(const StepPlan& plan);
  Failures HoldLateRows(const StepPlan& plan);
  void Hold(LiveChoice& choice);
  Status Prepare(LiveChoice& choice);
  Status Post(const LiveChoice& choice);
  Status Settle(LiveChoice& choice);

  const int64_t max_wait_ns_;
  Scheduler& scheduler_;
  Signal& wake_;
  EngineLoad& counters_;
  std::vector<LiveChoice*> held_;  // in no plan until their masks are filled; at most max_sequences
  MaskWorkers workers_;            // last: its threads notify wake_
};

}  // namespace tramontane
