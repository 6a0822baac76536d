// Engine: requests in, tokens out. Step() is the whole of it, in verbs.
//
// Threads: Submit, Load and the rest from any thread; Step and WaitForWork from one thread
// (EngineThread's); results leave through the output thread, which the engine owns. No mutex can be reached
// from Step. Always: an accepted request ends its stream exactly once, whatever happens.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "engine/kv/tier/kv_tier.h"
#include "engine/life/engine_load.h"
#include "engine/life/engine_model.h"
#include "engine/life/inbox.h"
#include "engine/life/live_request.h"
#include "engine/life/request_life.h"
#include "engine/output/output_metrics.h"
#include "engine/output/output_processor.h"
#include "engine/output/token_stream.h"
#include "engine/request/limits.h"
#include "engine/request/live_report.h"
#include "engine/request/request.h"
#include "engine/run/model_runner.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/step_plan.h"
#include "engine/step_metrics.h"
#include "engine/step_trace.h"
#include "engine/threads/clock.h"
#include "engine/threads/published.h"
#include "engine/threads/question.h"
#include "engine/threads/signal.h"
#include "engine/transfer/kv_report.h"
#include "engine/transfer/kv_transfer.h"
#include "kernels/core/status.h"
#include "models/kv_layout.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

using LiveQuestion = Question<LiveReport>;

enum class StepOutcome {
  kWorked,
  kNothingToDo,
  kNoRoom,  // in the output queue: the output thread is behind. Nothing was done
};

class Engine {
 public:
  // `tokenizer` may be null: then there is no text and no stop strings (benchmarks). All borrowed, outlive
  // it; the tier is the engine's. REQUIRES: limits.Validate() is OK; a tier comes with the prefix cache.
  Engine(const EngineLimits& limits, const EngineModel& model, ModelRunner& runner,
         const Tokenizer* tokenizer, const Clock& clock, std::unique_ptr<KvTier> tier = nullptr);
  ~Engine();  // streams still open end with UNAVAILABLE. REQUIRES: nobody steps

  // Checks the request against the limits and puts it in the inbox. Errors name the field, the value and the
  // limit: INVALID_ARGUMENT, RESOURCE_EXHAUSTED (queue full), INTERNAL (the device is lost). Ids are only
  // told on; whoever cares keeps them distinct.
  StatusOr<std::shared_ptr<TokenStream>> Submit(Request request, std::function<void()> on_ready);

  // RESOURCE_EXHAUSTED: the queue is full, so that Submit would refuse any request.
  Status CheckQueue() const { return inbox_.full() ? QueueFullError() : Status::Ok(); }

  // One step: Drain, Reap, Plan, Forward, Sample, Collect, Apply, Publish.
  StepOutcome Step();

  // Blocks until there may be work (a submission, room in the output queue, Wake) or the time is over; a time
  // below 0 never is.
  void WaitForWork(int64_t timeout_ns) { wake_.Wait(timeout_ns); }
  void Wake() { wake_.Notify(); }

  // Every accepted request's stream is done (its reader may not have taken the end yet).
  bool idle() const { return unfinished_.load(std::memory_order_acquire) == 0; }
  // Not OK once the device is lost: every stream has ended with this, and no request is taken any more.
  Status fatal() const { return lost_.load(std::memory_order_acquire) ? fatal_ : Status::Ok(); }

  // How long the engine has had work and ended no step; 0 without work. What a watchdog looks at.
  int64_t stalled_ns() const;

  EngineLoad Load() const;
  // Aborts where a page or an image is lost or counted twice. Reads all of them: for tests. The thread that
  // steps.
  void CheckAccounting() const { scheduler_.store().CheckAccounting(); }
  const OutputMetrics& output_metrics() const { return output_.metrics(); }
  const StepMetrics& step_metrics() const { return step_metrics_; }
  std::shared_ptr<StepTrace> step_trace() const { return step_trace_; }  // may outlive the engine
  // The KV cache's tables, as they are when the next step begins: its answer is there then. The question may
  // outlive the engine. RESOURCE_EXHAUSTED: KvQuestions::kMost wait already.
  StatusOr<std::shared_ptr<KvQuestion>> AskKv();
  // The same of the requests that run.
  StatusOr<std::shared_ptr<LiveQuestion>> AskLive();

  // Cached pages are copied to the host, or put into the cache from there, while requests go on; the transfer
  // may outlive the engine. RESOURCE_EXHAUSTED: KvTransfers::kMost wait already. REQUIRES: keeps_pages().
  Status StartTransfer(const std::shared_ptr<KvTransfer>& transfer);
  // Whether its pages can be copied.
  bool keeps_pages() const { return runner_.copies_pages(); }

  const EngineLimits& limits() const { return limits_; }
  const KvLayout& kv_layout() const { return model_.kv_layout; }

 private:
  Status QueueFullError() const;
  TextPath PathOf(const LiveRequest& live) const;
  Status CheckPolicyFits(const ContextPolicy& policy) const;

  // A step that was forwarded and is not applied.
  struct InFlight {
    StepTicket ticket;
    StepPlan plan;
    int64_t moves = 0;         // the last batch of moves in front of it
    int64_t begin_ns = 0;      // of Forward
    int64_t forwarded_ns = 0;  // Forward had returned; prefill only
  };

  // The verbs that are not the runner's, in the order of a step.
  void Drain();
  void Reap();
  StepPlan Plan();
  void Apply(const InFlight& step, StepResult result);
  bool Publish();

  // Forward, Sample, Collect and Apply of plans in flight, in their order. An error is a lost device.
  Status Run(StepPlan plan);
  Status CollectOldest();
  Status MovePages(bool waits);

  void LoseDevice(const Status& status);
  void EndEverything(const Status& status);

  const EngineLimits limits_;
  const EngineModel model_;
  ModelRunner& runner_;
  const Tokenizer* const tokenizer_;
  const Clock& clock_;

  // ---- shared -----------------------------------------------------------------------------------
  Signal wake_;
  Inbox inbox_;
  KvQuestions kv_questions_;
  Questions<LiveReport> live_questions_;
  KvTransfers kv_transfers_;
  std::atomic<int64_t> unfinished_{0};  // accepted, stream not done
  Status fatal_;                        // written once, before lost_
  std::atomic<bool> lost_{false};
  std::atomic<int64_t> busy_since_ns_{0};  // a request came while there was no other
  std::atomic<int64_t> stepped_ns_{0};     // the last step that did something has ended
  Published<EngineLoad> load_;
  const std::shared_ptr<StepTrace> step_trace_ = std::make_shared<StepTrace>();
  const std::shared_ptr<CancelledStreams> cancels_ = std::make_shared<CancelledStreams>();
  const std::shared_ptr<UnreadBytes> unread_bytes_ = std::make_shared<UnreadBytes>(0);
  OutputProcessor output_;

  // ---- engine thread ----------------------------------------------------------------------------
  const std::unique_ptr<KvTier> tier_;  // null: none. Its disk notifies wake_
  Scheduler scheduler_;
  std::deque<InFlight> in_flight_;  // at most limits_.steps_in_flight
  int64_t moves_ = 0;               // the last batch of them that was queued
  int64_t now_ns_ = 0;              // of this step
  StepMetrics step_metrics_;
  int64_t applied_ns_ = 0;             // the results of the last step that was applied were there
  StepOutput* step_output_ = nullptr;  // of this step
  EngineLoad counters_;                // what is counted, not looked up
  RequestLife life_;                   // last: its threads notify wake_
};

}  // namespace tramontane
