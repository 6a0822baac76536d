// RequestLife: what becomes of requests on the engine thread. A request begins, waits, is in plans, takes
// tokens, ends, and is let go once no step in flight knows it. What happens to it goes to the step's output.
//
// The step in verbs (engine.cc) says when; this says what. Engine thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "engine/life/constrain/mask_waits.h"
#include "engine/life/engine_load.h"
#include "engine/life/engine_model.h"
#include "engine/life/inbox.h"
#include "engine/life/live_request.h"
#include "engine/life/waiting_requests.h"
#include "engine/output/output_processor.h"
#include "engine/request/live_report.h"
#include "engine/run/model_runner.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/step_plan.h"

namespace tramontane {

class RequestLife {
 public:
  // All are borrowed. `cancelled`: the streams that were, of requests that run or not; what is counted here
  // goes to `counters`.
  RequestLife(const EngineLimits& limits, const EngineModel& model, Scheduler& scheduler, Inbox& inbox,
              Signal& wake, CancelledStreams& cancelled, EngineLoad& counters);

  // What happens from now on goes to `output`, which lives until the next call.
  void BeginStep(StepOutput* output, int64_t now_ns) {
    step_output_ = output;
    now_ns_ = now_ns;
  }
  void set_now_ns(int64_t now_ns) { now_ns_ = now_ns; }

  void Begin(std::shared_ptr<LiveRequest> live);
  // The next branches of prompts that have ended, at most so many.
  void BeginBranches(int64_t most);
  bool has_more_branches() const { return !branching_.empty(); }
  // Ends what was cancelled, is out of time or complete by its text; goes on with choices whose masks were
  // filled; lets go of what has ended.
  void Reap();
  void EndEverything(const Status& status);

  size_t alive() const { return planned_.size() + waiting_.size(); }
  std::vector<const Sequence*> Sequences() const;  // that have been in a plan
  LiveReport Report() const;                       // of their requests
  bool waits_for_masks() const { return masks_.any_held(); }
  // Reap left some for the next step.
  bool has_more_to_reap() const { return waiting_.has_due() || has_more_planned_; }

  // A plan was made. The first one that a request is in takes it out of what waits.
  void NotePlan(const StepPlan& plan, bool preempted);
  // The forward pass of a prefill step has ended.
  void NotePrefilled(const StepPlan& plan, int64_t begin_ns, int64_t end_ns);
  // Of the plan's samples, once their masks are filled or their rows sit the step out; until the next call.
  const SampleInputs& InputsOf(const StepPlan& plan);
  // Gives choices what their rows computed. What each row counts for.
  std::vector<RowOutcome> Take(const StepPlan& plan, StepResult result);
  // The tokens left are computed again once the step is applied that gave the one too many.
  void DiscardWhatIsDue(const StepPlan& plan);

 private:
  void ReapPlanned();
  void ReapWaiting();
  void ReapRequest(LiveRequest& live);
  // Lets go of its choices, if none of them can be in a step any more; else false.
  static bool Release(LiveRequest& live);

  void TakeRow(const StepPlan& plan, const StepRow& row, std::vector<WantResult>& results);
  void TakeScore(LiveChoice& choice, WantResult score);
  void Branch(LiveChoice& prompt);
  void EndBranch(LiveChoice& branch);
  void ForkSiblings(LiveChoice& parent);
  void AcceptToken(LiveChoice& choice, WantResult drawn);
  // How this token ends its choice, if it does.
  std::optional<ChoiceEnd> EndByToken(const LiveChoice& choice, int32_t token) const;

  void EndRequest(LiveRequest& live, const ChoiceEnd& end);
  void EndFailed(MaskWaits::Failures failures);
  void EndChoice(LiveChoice& choice, ChoiceEnd end, std::optional<TokenInfo> last_token);
  ChoiceOutput& Emit(LiveChoice& choice);
  static StreamStarted Started(LiveRequest& live);

  const EngineLimits& limits_;
  const EngineModel& model_;
  Scheduler& scheduler_;
  Inbox& inbox_;
  EngineLoad& counters_;

  WaitingRequests waiting_;                             // what has not been in a plan yet
  std::vector<std::shared_ptr<LiveRequest>> planned_;   // the others, by their first plan
  std::deque<std::shared_ptr<LiveRequest>> branching_;  // of these, with branches that have not begun
  std::mt19937_64 seeds_;                               // of requests that bring none
  bool has_more_planned_ = false;
  int64_t ended_pages_ = 0;  // that choices had when they ended, since the start
  int64_t arrivals_ = 0;
  int64_t now_ns_ = 0;                 // of this step
  StepOutput* step_output_ = nullptr;  // of this step
  SampleInputs sample_inputs_;         // of this step; kept for its memory
  MaskWaits masks_;
};

}  // namespace tramontane
