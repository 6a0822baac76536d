#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <utility>

#include "engine/life/constrain/output_constraint.h"
#include "engine/life/inbox.h"
#include "engine/life/live_request.h"
#include "engine/life/request_life.h"
#include "engine/output/output_processor.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/step_plan.h"
#include "engine/threads/published.h"
#include "engine/threads/signal.h"

namespace tramontane {
namespace {

// Choices of requests that a step begins at most, a whole request at least.
constexpr int32_t kBeginsAStep = 256;
// Where nothing can go on but by others' work, which wakes the engine: how long cancels and deadlines wait.
constexpr int64_t kLookAgainNs = 5'000'000;

}  // namespace

class Engine::Impl {
 public:
  Impl(const EngineLimits& limits, const EngineModel& model, ModelRunner& runner, const Tokenizer* tokenizer,
       const Clock& clock, std::unique_ptr<KvTier> tier);
  ~Impl();

  // ---- any thread -------------------------------------------------------------------------------
  StatusOr<std::shared_ptr<TokenStream>> Submit(Request request, std::function<void()> on_ready);
  void Wake() { wake_.Notify(); }
  bool idle() const { return unfinished_.load(std::memory_order_acquire) == 0; }
  Status fatal() const { return lost_.load(std::memory_order_acquire) ? fatal_ : Status::Ok(); }
  TextPath PathOf(const LiveRequest& live) const;
  Status CheckPolicyFits(const ContextPolicy& policy) const;
  Status CheckTreeFits(const CandidateTree& tree) const;
  int64_t stalled_ns() const;
  void CheckAccounting() const;
  EngineLoad Load() const;
  const OutputMetrics& output_metrics() const { return output_.metrics(); }
  const std::shared_ptr<StepTrace>& step_trace() const { return step_trace_; }
  StatusOr<std::shared_ptr<KvQuestion>> AskKv();
  Status StartTransfer(const std::shared_ptr<KvTransfer>& transfer);
  bool keeps_pages() const { return runner_.copies_pages(); }
  const EngineLimits& limits() const { return limits_; }
  const KvLayout& kv_layout() const { return model_.kv_layout; }

  // ---- engine thread ----------------------------------------------------------------------------
  StepOutcome Step();
  void WaitForWork(int64_t timeout_ns) { wake_.Wait(timeout_ns); }

 private:
  // A step that was forwarded and is not applied.
  struct InFlight {
    StepTicket ticket;
    StepPlan plan;
    int64_t moves = 0;         // the last batch of moves in front of it
    int64_t begin_ns = 0;      // of Forward
    int64_t forwarded_ns = 0;  // Forward had returned; prefill only
  };

  // The verbs, in the order of a step.
  void Drain();
  void Reap();
  StepPlan Plan();
  StatusOr<StepTicket> Forward(const StepPlan& plan) { return runner_.Forward(plan); }
  Status Sample(const InFlight& step) { return runner_.Sample(step.ticket, life_.InputsOf(step.plan)); }
  StatusOr<StepResult> Collect(StepTicket ticket) { return runner_.Collect(ticket); }
  void Apply(const InFlight& step, StepResult result);
  bool Publish();

  // Forward, Sample, Collect and Apply of plans in flight, in their order. An error is a lost device.
  Status Run(StepPlan plan);
  Status CollectOldest();
  Status MovePages(bool waits);

  void AnswerKvQuestions();
  void Trace(const StepPlan& plan, int64_t begin_ns);

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
  std::deque<std::shared_ptr<LiveRequest>> arrived_;  // taken out of the inbox, and not begun
  std::deque<InFlight> in_flight_;                    // at most limits_.steps_in_flight
  int64_t moves_ = 0;                                 // the last batch of them that was queued
  int64_t now_ns_ = 0;                                // of this step
  int64_t applied_ns_ = 0;             // the results of the last step that was applied were there
  StepOutput* step_output_ = nullptr;  // of this step
  EngineLoad counters_;                // what is counted, not looked up
  RequestLife life_;                   // last: its threads notify wake_
};

Engine::Impl::Impl(const EngineLimits& limits, const EngineModel& model, ModelRunner& runner,
                   const Tokenizer* tokenizer, const Clock& clock, std::unique_ptr<KvTier> tier)
    : limits_(limits),
      model_(model),
      runner_(runner),
      tokenizer_(tokenizer),
      clock_(clock),
      inbox_(limits.max_queued_requests, limits.max_queued_bytes),
      output_(limits, wake_, [this] { unfinished_.fetch_sub(1, std::memory_order_release); }),
      tier_(std::move(tier)),
      scheduler_(limits, model.kv_layout, model.costs, tier_.get()),
      life_(limits_, model_, scheduler_, inbox_, wake_, *cancels_, counters_) {
  if (tier_ != nullptr) tier_->set_wake([this] { wake_.Notify(); });
  Publish();
}

Engine::Impl::~Impl() {
  while ((step_output_ = output_.Back()) == nullptr) wake_.Wait(Signal::kForever);
  life_.BeginStep(step_output_, clock_.NowNs());
  EndEverything(Unavailable("the engine is shutting down"));
  Publish();
}

// ---- any thread ---------------------------------------------------------------------------------

StatusOr<std::shared_ptr<TokenStream>> Engine::Impl::Submit(Request request, std::function<void()> on_ready) {
  TM_RETURN_IF_ERROR(fatal());
  TM_RETURN_IF_ERROR(ValidateRequest(request, limits_, model_.vocab_size));
  request.context_policy = ContextPolicyOf(request, limits_);
  TM_RETURN_IF_ERROR(CheckPolicyFits(*request.context_policy));
  if (tokenizer_ == nullptr && !request.stopping.stop.empty()) {
    return InvalidArgument("needs a tokenizer, and this model has none")
        .WithField("stopping.stop", FieldForm::kSubject);
  }
  if (request.constraint.grammar != nullptr) {
    TM_CHECK(tokenizer_ != nullptr, "a grammar without a tokenizer");
    if (model_.eos_ids.empty()) {
      return FailedPrecondition("needs a token that ends a text, and this model has none")
          .WithField("constraint", FieldForm::kSubject);
    }
    for (const int32_t token : request.constraint.forced_prefix) {
      if (std::count(model_.eos_ids.begin(), model_.eos_ids.end(), token) == 0) continue;
      return InvalidArgument("has the id " + std::to_string(token) + ", which ends the text")
          .WithField("constraint.forced_prefix_ids", FieldForm::kSubject);
    }
  }
  if (request.received_ns == 0) request.received_ns = clock_.NowNs();
  auto stream = std::make_shared<TokenStream>(request.id, std::move(on_ready), cancels_, unread_bytes_);
  auto live = std::make_shared<LiveRequest>(std::move(request), stream, tokenizer_, model_.eos_ids);
  if (!live->request.candidates.empty()) {
    live->tree = CandidateTree::Of(live->request.prompt, live->request.candidates, limits_.page_size);
    TM_RETURN_IF_ERROR(CheckTreeFits(*live->tree));
  }
  if (limits_.prefix_cache) live->path = PathOf(*live);
  if (live->request.constraint.grammar != nullptr) {
    TM_ASSIGN_OR_RETURN(
        live->constraint_start,
        StartOfConstraint(live->request, *tokenizer_, model_.vocab_size, limits_.max_constraint_step_ns));
    live->constraint_left_ns = live->constraint_start.left_ns;
  }
  // Before it counts as work, so that work never looks older than it is.
  if (idle()) busy_since_ns_.store(clock_.NowNs(), std::memory_order_relaxed);
  unfinished_.fetch_add(1, std::memory_order_release);
  if (!inbox_.Push(std::move(live))) {
    unfinished_.fetch_sub(1, std::memory_order_release);
    return ResourceExhausted("the queue is full: at most " + std::to_string(limits_.max_queued_requests) +
                             " requests (max_queued_requests) and " +
                             std::to_string(limits_.max_queued_bytes) + " bytes wait");
  }
  wake_.Notify();
  return stream;
}

// Hashed here, so that the engine thread need not.
TextPath Engine::Impl::PathOf(const LiveRequest& live) const {
  TextPath path(live.identity, PlainBlocksEnd(live.identity.policy, model_.kv_layout),
                model_.kv_layout.format.page_size);
  path.Extend(live.prompt(), live.tree ? live.tree->trunk_len : std::ssize(live.prompt()));
  return path;
}

// What the model and the pool say to a policy, beside the request itself.
Status Engine::Impl::CheckPolicyFits(const ContextPolicy& policy) const {
  if (policy.type == ContextPolicyType::kNone || policy.type == ContextPolicyType::kReevaluate) return {};
  const int64_t ahead = LeastChunk(model_.kv_layout, limits_.max_step_tokens);
  const int64_t pages = PagesUnderPolicy(model_.kv_layout, policy, ahead);
  if (pages <= limits_.pool_pages) return {};
  return InvalidArgument("is " + std::to_string(policy.n_ctx) + ", which takes " + std::to_string(pages) +
                         " pages while the text moves on; the pool has " + std::to_string(limits_.pool_pages))
      .WithField("context_policy.n_ctx", FieldForm::kSubject);
}

// And to the candidates of a request.
Status Engine::Impl::CheckTreeFits(const CandidateTree& tree) const {
  const auto refuse = [](const std::string& what) {
    return InvalidArgument(what).WithField("candidates", FieldForm::kSubject);
  };
  const int64_t pages = tree.Pages(model_.kv_layout, LeastChunk(model_.kv_layout, limits_.max_step_tokens));
  if (pages <= limits_.pool_pages) return {};
  return refuse("take " + std::to_string(pages) + " pages with their prompt; the pool has " +
                std::to_string(limits_.pool_pages));
}

int64_t Engine::Impl::stalled_ns() const {
  if (idle()) return 0;
  const int64_t moved_ns =
      std::max(busy_since_ns_.load(std::memory_order_relaxed), stepped_ns_.load(std::memory_order_relaxed));
  return std::max<int64_t>(0, clock_.NowNs() - moved_ns);
}

void Engine::Impl::CheckAccounting() const { scheduler_.store().CheckAccounting(); }

EngineLoad Engine::Impl::Load() const {
  EngineLoad load = load_.Get();
  load.waiting = inbox_.queued();
  return load;
}

StatusOr<std::shared_ptr<KvQuestion>> Engine::Impl::AskKv() {
  std::shared_ptr<KvQuestion> question = kv_questions_.Ask();
  if (question == nullptr) {
    return ResourceExhausted("at most " + std::to_string(KvQuestions::kMost) +
                             " questions for the KV cache's tables wait at once");
  }
  wake_.Notify();
  return question;
}

Status Engine::Impl::StartTransfer(const std::shared_ptr<KvTransfer>& transfer) {
  TM_CHECK(keeps_pages(), "no pages are kept");
  TM_RETURN_IF_ERROR(fatal());
  if (!kv_transfers_.Push(transfer, model_.kv_layout)) {
    return ResourceExhausted("at most " + std::to_string(KvTransfers::kMost) +
                             " copies of the KV cache's pages wait at once");
  }
  wake_.Notify();
  return {};
}

// ---- the step -----------------------------------------------------------------------------------

StepOutcome Engine::Impl::Step() {
  if (kv_questions_.any()) AnswerKvQuestions();
  step_output_ = output_.Back();
  if (step_output_ == nullptr) return StepOutcome::kNoRoom;
  now_ns_ = clock_.NowNs();
  life_.BeginStep(step_output_, now_ns_);
  Drain();
  Reap();
  if (lost_.load(std::memory_order_relaxed)) {
    kv_transfers_.EndAll(fatal_);
    return Publish() ? StepOutcome::kWorked : StepOutcome::kNothingToDo;
  }
  const bool copies = kv_transfers_.any();
  if (copies) {
    if (const Status status = kv_transfers_.Work(scheduler_.cache(), runner_); !status.ok()) {
      LoseDevice(status);
      Publish();
      return StepOutcome::kWorked;
    }
  }
  StepPlan plan = Plan();
  const bool waits_for_disk = copies && kv_transfers_.waits_for_disk();
  const bool worked = (copies && !waits_for_disk) || plan.lane != Lane::kIdle || !in_flight_.empty() ||
                      !arrived_.empty() || life_.has_more_to_reap();
  if (!worked && (waits_for_disk || life_.waits_for_masks() || scheduler_.awaits_pages())) {
    wake_.Wait(kLookAgainNs);  // who was cancelled, or is out of time
    Publish();
    return StepOutcome::kWorked;
  }
  const Status status = Run(std::move(plan));
  if (!status.ok()) LoseDevice(status);
  if (worked) stepped_ns_.store(clock_.NowNs(), std::memory_order_relaxed);
  return Publish() || worked ? StepOutcome::kWorked : StepOutcome::kNothingToDo;
}

void Engine::Impl::AnswerKvQuestions() {
  kv_questions_.AnswerAll(std::make_shared<const KvReport>(ReportKv(scheduler_.store(), life_.Sequences())));
}

// One step in flight: Forward, Sample, Collect, Apply of the plan. Two: while the device computes the plan,
// the step before it is collected and applied; so the plan is sampled knowing every token before it.
Status Engine::Impl::Run(StepPlan plan) {
  const bool idle = plan.lane == Lane::kIdle;
  if (tier_ != nullptr && scheduler_.store().has_moves()) {
    TM_RETURN_IF_ERROR(MovePages(idle && in_flight_.empty()));
  }
  if (!idle) {
    const int64_t begin_ns = clock_.NowNs();
    TM_ASSIGN_OR_RETURN(const StepTicket ticket, Forward(plan));
    const int64_t forwarded_ns = plan.lane == Lane::kPrefill ? clock_.NowNs() : 0;
    in_flight_.push_back({ticket, std::move(plan), moves_, begin_ns, forwarded_ns});
  }
  while (in_flight_.size() > (idle ? 0u : 1u)) TM_RETURN_IF_ERROR(CollectOldest());
  if (idle) return {};
  TM_RETURN_IF_ERROR(Sample(in_flight_.back()));
  return limits_.steps_in_flight == 1 ? CollectOldest() : Status::Ok();
}

// What is evicted, and what comes back, in front of the step that was planned with it. Where there is no step
// whose end could tell that they are done they are waited for.
Status Engine::Impl::MovePages(bool waits) {
  const KvStore::Moves moves = scheduler_.cache().TakeMoves();
  moves_ = moves.batch;
  TM_RETURN_IF_ERROR(runner_.MovePages(moves.list));
  if (!waits) return {};
  TM_RETURN_IF_ERROR(runner_.ReadPages({}));
  scheduler_.cache().MovesDone(moves_);
  return {};
}

Status Engine::Impl::CollectOldest() {
  TM_ASSIGN_OR_RETURN(StepResult result, Collect(in_flight_.front().ticket));
  if (tier_ != nullptr) scheduler_.cache().MovesDone(in_flight_.front().moves);
  Apply(in_flight_.front(), std::move(result));
  in_flight_.pop_front();
  return {};
}

// A step begins so many choices at most; those behind wait for the next one.
void Engine::Impl::Drain() {
  for (std::shared_ptr<LiveRequest>& live : inbox_.TakeAll()) arrived_.push_back(std::move(live));
  for (int32_t choices = 0; !arrived_.empty() && choices < kBeginsAStep; arrived_.pop_front()) {
    choices += arrived_.front()->request.choices;
    life_.Begin(std::move(arrived_.front()));
  }
}

void Engine::Impl::Reap() {
  if (lost_.load(std::memory_order_relaxed)) EndEverything(fatal_);
  life_.Reap();
}

void Engine::Impl::EndEverything(const Status& status) {
  do {
    Drain();
    life_.EndEverything(status);
  } while (!arrived_.empty());
}

StepPlan Engine::Impl::Plan() {
  const int64_t preemptions = scheduler_.preemptions();
  StepPlan plan = scheduler_.Plan(now_ns_);
  life_.NotePlan(plan, scheduler_.preemptions() != preemptions);
  const size_t alive = life_.alive();
  TM_CHECK(plan.lane != Lane::kIdle || alive == 0 || !in_flight_.empty() || life_.waits_for_masks() ||
               scheduler_.awaits_pages(),
           "%zu requests are alive and none can run", alive);
  return plan;
}

void Engine::Impl::Apply(const InFlight& step, StepResult result) {
  const StepPlan& plan = step.plan;
  now_ns_ = clock_.NowNs();
  life_.set_now_ns(now_ns_);
  // A step that was queued behind another began when that one ended.
  const int64_t begin_ns = std::max(step.begin_ns, std::exchange(applied_ns_, now_ns_));
  scheduler_.Learn(plan, now_ns_ - begin_ns);
  // A backend that runs ops before they return has computed the rows when Forward returns. Of one that is
  // asynchronous the host learns that only with the samples, so there these count as prefill.
  const int64_t prefilled_ns = limits_.steps_in_flight == 1 ? step.forwarded_ns : now_ns_;
  if (plan.lane == Lane::kPrefill) life_.NotePrefilled(plan, begin_ns, prefilled_ns);
  if (step_trace_->on()) Trace(plan, begin_ns);
  scheduler_.Apply(plan, life_.Take(plan, std::move(result)));
  life_.DiscardWhatIsDue(plan);

  ++counters_.steps;
  if (plan.lane == Lane::kPrefill) {
    ++counters_.prefill_steps;
    counters_.prompt_tokens += plan.tokens;
  } else {
    ++counters_.decode_steps;
  }
}

void Engine::Impl::Trace(const StepPlan& plan, int64_t begin_ns) {
  StepRecord record;
  record.step = plan.step;
  record.begin_ns = begin_ns;
  record.end_ns = now_ns_;
  record.lane = plan.lane;
  record.rows = static_cast<int32_t>(plan.rows.size());
  record.tokens = plan.tokens;
  record.held_pages = scheduler_.store().held_pages();
  step_trace_->Add(record);
}

// True when there was something to tell.
bool Engine::Impl::Publish() {
  const KvStore& store = scheduler_.store();
  TM_DCHECK((store.CheckAccounting(), true), "it aborts by itself");
  EngineLoad load = counters_;
  load.running = scheduler_.running();
  load.preemptions = scheduler_.preemptions();
  load.hashed_blocks = store.hashed_blocks();
  load.total_pages = store.total_pages();
  load.free_pages = store.free_pages();
  load.held_pages = store.held_pages();
  load.cached_pages = store.cached_pages();
  const std::vector<int64_t>& held_of_group = store.held_pages_of_group();
  std::copy(held_of_group.begin(), held_of_group.end(), load.held_pages_of_group.begin());
  const std::vector<int64_t>& cached_of_group = store.cached_pages_of_group();
  std::copy(cached_of_group.begin(), cached_of_group.end(), load.cached_pages_of_group.begin());
  if (tier_ != nullptr) {
    load.host_kv_bytes = tier_->host_bytes();
    load.disk_kv_bytes = tier_->disk_bytes();
  }
  load.prefix_queries = scheduler_.prefix_queries();
  load.prefix_hits = scheduler_.prefix_hits();
  load_.Set(load);
  if (step_output_ == nullptr || step_output_->empty()) return false;
  output_.Push();
  return true;
}

void Engine::Impl::LoseDevice(const Status& status) {
  fatal_ = Internal("the device is lost: " + status.message());
  lost_.store(true, std::memory_order_release);
  EndEverything(fatal_);
}

// ---- the public face ----------------------------------------------------------------------------

Engine::Engine(const EngineLimits& limits, const EngineModel& model, ModelRunner& runner,
               const Tokenizer* tokenizer, const Clock& clock, std::unique_ptr<KvTier> tier)
    : impl_(std::make_unique<Impl>(limits, model, runner, tokenizer, clock, std::move(tier))) {}
Engine::~Engine() = default;

StatusOr<std::shared_ptr<TokenStream>> Engine::Submit(Request request, std::function<void()> on_ready) {
  return impl_->Submit(std::move(request), std::move(on_ready));
}
StepOutcome Engine::Step() { return impl_->Step(); }
void Engine::WaitForWork(int64_t timeout_ns) { impl_->WaitForWork(timeout_ns); }
void Engine::Wake() { impl_->Wake(); }
bool Engine::idle() const { return impl_->idle(); }
Status Engine::fatal() const { return impl_->fatal(); }
int64_t Engine::stalled_ns() const { return impl_->stalled_ns(); }
EngineLoad Engine::Load() const { return impl_->Load(); }
void Engine::CheckAccounting() const { impl_->CheckAccounting(); }
const EngineLimits& Engine::limits() const { return impl_->limits(); }
const OutputMetrics& Engine::output_metrics() const { return impl_->output_metrics(); }
std::shared_ptr<StepTrace> Engine::step_trace() const { return impl_->step_trace(); }
StatusOr<std::shared_ptr<KvQuestion>> Engine::AskKv() { return impl_->AskKv(); }
Status Engine::StartTransfer(const std::shared_ptr<KvTransfer>& transfer) {
  return impl_->StartTransfer(transfer);
}
bool Engine::keeps_pages() const { return impl_->keeps_pages(); }
const KvLayout& Engine::kv_layout() const { return impl_->kv_layout(); }

}  // namespace tramontane
