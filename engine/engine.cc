#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <deque>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <utility>

#include "engine/inbox.h"
#include "engine/live_request.h"
#include "engine/mask_workers.h"
#include "engine/output_constraint.h"
#include "engine/output_processor.h"
#include "engine/published.h"
#include "engine/sampling_history.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/signal.h"
#include "engine/step_plan.h"

namespace tramontane {
namespace {

struct ActiveRequest;

// Pieces of work for the mask workers that may wait at once, for each sequence that may run: its own, and of
// choices that have ended meanwhile.
constexpr size_t kMasksPerSequence = 4;

// A Sequence as the engine made it: every Sequence in a plan is the base of one of these.
struct Choice : Sequence {
  ActiveRequest* owner = nullptr;
  std::optional<SamplingHistory> history;        // from the first sample on
  std::shared_ptr<OutputConstraint> constraint;  // null: none; shared with the worker that fills its mask
  bool late = false;   // sits the step out that is being sampled: its mask was not filled in time
  bool ended = false;  // its end was given to the output thread
};

Choice& ChoiceOf(Sequence* sequence) { return *static_cast<Choice*>(sequence); }

// The engine thread's side of one request.
struct ActiveRequest {
  std::shared_ptr<LiveRequest> live;
  uint64_t seed = 0;
  bool queued = true;                      // counts in the inbox
  bool started = false;                    // its Started was given to the output thread
  std::vector<Choice> choices;             // [n], never resized: the scheduler holds their addresses
  std::vector<TokenInfo> prompt_logprobs;  // [prompt - 1] when asked for, filled chunk by chunk

  const Request& request() const { return live->request; }
};

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// When its deadline or its limit of time ends the request, whichever is first; kNever where it has neither.
int64_t OutOfTimeNs(const Request& request) {
  const int64_t deadline_ns = request.deadline_ns > 0 ? request.deadline_ns : kNever;
  const int64_t limit_ns = request.stopping.time_limit_ns;
  return std::min(deadline_ns, limit_ns > 0 && request.received_ns <= kNever - limit_ns
                                   ? request.received_ns + limit_ns
                                   : kNever);
}

SamplingRow RowFor(const ActiveRequest& active, int32_t choice, int64_t position) {
  const SamplingParams& sampling = active.request().sampling;
  SamplingRow row;
  row.temperature = sampling.temperature;
  row.top_p = sampling.top_p;
  row.min_p = sampling.min_p;
  row.top_k = std::max(sampling.top_k, 0);
  row.repetition_penalty = sampling.repetition_penalty;
  row.presence_penalty = sampling.presence_penalty;
  row.frequency_penalty = sampling.frequency_penalty;
  row.choice = choice;
  row.seed = active.seed;
  row.position = position;
  row.top_logprobs = std::max(active.request().output.logprobs, 0);
  return row;
}

TokenInfo InfoOf(ScoredToken scored) {
  return {scored.token.token, scored.token.logprob, scored.rank, std::move(scored.top)};
}

// Whether a token is allowed that the adjustments do not ban.
bool AllowsAny(std::span<const uint32_t> mask, std::span<const LogitAdjust> adjusts) {
  int64_t allowed = 0;
  for (const uint32_t word : mask) allowed += std::popcount(word);
  for (const LogitAdjust& adjust : adjusts) {
    const bool banned = adjust.bias == -std::numeric_limits<float>::infinity();
    if (banned && MaskAllows(mask, adjust.token)) --allowed;
  }
  return allowed > 0;
}

Status NotFinite() { return Internal("the model's logits are not finite"); }

uint64_t TrulyRandom() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

class Engine::Impl {
 public:
  Impl(const EngineLimits& limits, const EngineModel& model, ModelRunner& runner, const Tokenizer* tokenizer,
       const Clock& clock);
  ~Impl();

  // ---- any thread -------------------------------------------------------------------------------
  StatusOr<std::shared_ptr<TokenStream>> Submit(Request request, std::function<void()> on_ready);
  void Wake() { wake_.Notify(); }
  bool idle() const { return unfinished_.load(std::memory_order_acquire) == 0; }
  Status fatal() const { return lost_.load(std::memory_order_acquire) ? fatal_ : Status::Ok(); }
  Status CheckPolicyFits(const ContextPolicy& policy) const;
  int64_t stalled_ns() const;
  EngineLoad Load() const;
  const OutputMetrics& output_metrics() const { return output_.metrics(); }
  const std::shared_ptr<StepTrace>& step_trace() const { return step_trace_; }
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
    int64_t begin_ns = 0;      // of Forward
    int64_t forwarded_ns = 0;  // Forward had returned; prefill only
  };

  // The verbs, in the order of a step.
  void Drain();
  void Reap();
  StepPlan Plan();
  StatusOr<StepTicket> Forward(const StepPlan& plan) { return runner_.Forward(plan); }
  Status Sample(StepTicket ticket, const StepPlan& plan);
  StatusOr<StepResult> Collect(StepTicket ticket) { return runner_.Collect(ticket); }
  void Apply(const InFlight& step, StepResult result);
  bool Publish();

  // Forward, Sample, Collect and Apply of plans in flight, in their order. An error is a lost device.
  Status Run(StepPlan plan);
  Status CollectOldest();

  void NotePrefill(const InFlight& step, int64_t begin_ns) const;
  void Trace(const StepPlan& plan, int64_t begin_ns);

  void Begin(std::shared_ptr<LiveRequest> live);
  void ReapWaiting();
  void ReapRequest(ActiveRequest& active);
  void LeaveQueue(ActiveRequest& active);
  static bool Releasable(const std::unique_ptr<ActiveRequest>& active);
  void CheckPages() const;

  void ApplyScores(ActiveRequest& active, const StepRow& row, std::vector<ScoredToken> scores);
  void ApplySamples(const StepRow& row, std::vector<ScoredToken> samples);
  void ForkSiblings(Choice& parent);
  void DiscardWhatIsDue(ActiveRequest& active);
  static void Discard(Choice& choice, int64_t count);
  static int64_t Discarded(const Choice& choice);
  void AcceptToken(Choice& choice, ScoredToken scored);
  void WaitForMasks(const StepPlan& plan);
  bool IsWorthWaiting(const StepPlan& plan) const;
  void HoldLateRows(const StepPlan& plan);
  void ResumeWhatIsReady();
  void NoteHeld();
  void Hold(Choice& choice);
  void Settle(Choice& choice);
  void FollowConstraint(Choice& choice, int32_t token);
  void AbandonConstraint(Choice& choice);
  // For the choice's next token; empty: all are allowed.
  static std::span<const uint32_t> MaskOf(const Choice& choice);
  Status WhyNoToken(const Choice& choice) const;
  // How this token ends its choice, if it does.
  std::optional<ChoiceEnd> EndByToken(const Choice& choice, int32_t token) const;

  void EndRequest(ActiveRequest& active, const ChoiceEnd& end);
  void EndChoice(Choice& choice, ChoiceEnd end, std::optional<TokenInfo> last_token);
  void EndEverything(const Status& status);
  void LoseDevice(const Status& status);
  ChoiceOutput& Emit(Choice& choice);
  StreamStarted Started(ActiveRequest& active);

  const EngineLimits limits_;
  const EngineModel model_;
  ModelRunner& runner_;
  const Tokenizer* const tokenizer_;
  const Clock& clock_;

  // ---- shared -----------------------------------------------------------------------------------
  Signal wake_;
  Inbox inbox_;
  std::atomic<int64_t> unfinished_{0};  // accepted, stream not done
  Status fatal_;                        // written once, before lost_
  std::atomic<bool> lost_{false};
  std::atomic<int64_t> busy_since_ns_{0};  // a request came while there was no other
  std::atomic<int64_t> stepped_ns_{0};     // the last step that did something has ended
  Published<EngineLoad> load_;
  const std::shared_ptr<StepTrace> step_trace_ = std::make_shared<StepTrace>();
  // Of requests that were cancelled, running or not: what waits is looked at only where this has moved.
  const std::shared_ptr<std::atomic<int64_t>> cancels_ = std::make_shared<std::atomic<int64_t>>(0);
  OutputProcessor output_;

  // ---- engine thread ----------------------------------------------------------------------------
  Scheduler scheduler_;
  // What has not been in a plan yet, oldest first: ten thousand of them must not cost a step anything.
  std::deque<std::unique_ptr<ActiveRequest>> waiting_;
  int64_t waiting_end_ns_ = kNever;  // none of them runs out of time before
  int64_t cancels_seen_ = 0;
  std::vector<std::unique_ptr<ActiveRequest>> active_;  // the others, by their first plan
  std::mt19937_64 seeds_{TrulyRandom()};                // of requests that bring none
  std::deque<InFlight> in_flight_;                      // at most limits_.steps_in_flight
  int64_t arrivals_ = 0;
  int64_t now_ns_ = 0;                 // of this step
  int64_t applied_ns_ = 0;             // the results of the last step that was applied were there
  StepOutput* step_output_ = nullptr;  // of this step
  SampleInputs sample_inputs_;         // of this step; kept for its memory
  std::vector<Choice*> held_;          // in no plan until their masks are filled; at most max_sequences
  EngineLoad counters_;                // what is counted, not looked up
  MaskWorkers mask_workers_;           // last: its threads wake the engine
};

Engine::Impl::Impl(const EngineLimits& limits, const EngineModel& model, ModelRunner& runner,
                   const Tokenizer* tokenizer, const Clock& clock)
    : limits_(limits),
      model_(model),
      runner_(runner),
      tokenizer_(tokenizer),
      clock_(clock),
      inbox_(limits.max_queued_requests, limits.max_queued_bytes),
      output_(limits.output_queue_steps, wake_,
              [this](const LiveRequest&) { unfinished_.fetch_sub(1, std::memory_order_release); }),
      scheduler_(limits, model.kv_layout, model.costs),
      mask_workers_(limits.mask_workers, kMasksPerSequence * static_cast<size_t>(limits.max_sequences),
                    wake_) {
  Publish();
}

Engine::Impl::~Impl() {
  while ((step_output_ = output_.Back()) == nullptr) wake_.Wait(Signal::kForever);
  now_ns_ = clock_.NowNs();
  Drain();
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
      if (!Contains(model_.eos_ids, token)) continue;
      return InvalidArgument("has the id " + std::to_string(token) + ", which ends the text")
          .WithField("constraint.forced_prefix_ids", FieldForm::kSubject);
    }
  }
  if (request.received_ns == 0) request.received_ns = clock_.NowNs();
  auto stream = std::make_shared<TokenStream>(request.id, std::move(on_ready), cancels_);
  auto live = std::make_shared<LiveRequest>(std::move(request), stream, tokenizer_, model_.eos_ids);
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

// What the model and the pool say to a policy, beside the request itself.
Status Engine::Impl::CheckPolicyFits(const ContextPolicy& policy) const {
  if (policy.type == ContextPolicyType::kNone || policy.type == ContextPolicyType::kReevaluate) return {};
  if (!model_.has_sinks) {
    return InvalidArgument(std::string("is ") + ContextPolicyName(policy.type) +
                           ", for which this device has no kernel; reevaluate needs none")
        .WithField("context_policy.type", FieldForm::kSubject);
  }
  const int64_t ahead = LeastChunk(model_.kv_layout, limits_.max_step_tokens);
  const int64_t pages = PagesUnderPolicy(model_.kv_layout, policy, ahead);
  if (pages <= limits_.pool_pages) return {};
  return InvalidArgument("is " + std::to_string(policy.n_ctx) + ", which takes " + std::to_string(pages) +
                         " pages while the text moves on; the pool has " + std::to_string(limits_.pool_pages))
      .WithField("context_policy.n_ctx", FieldForm::kSubject);
}

int64_t Engine::Impl::stalled_ns() const {
  if (idle()) return 0;
  const int64_t moved_ns =
      std::max(busy_since_ns_.load(std::memory_order_relaxed), stepped_ns_.load(std::memory_order_relaxed));
  return std::max<int64_t>(0, clock_.NowNs() - moved_ns);
}

EngineLoad Engine::Impl::Load() const {
  EngineLoad load = load_.Get();
  load.waiting = inbox_.queued();
  return load;
}

// ---- the step -----------------------------------------------------------------------------------

StepOutcome Engine::Impl::Step() {
  step_output_ = output_.Back();
  if (step_output_ == nullptr) return StepOutcome::kNoRoom;
  now_ns_ = clock_.NowNs();
  Drain();
  Reap();
  if (lost_.load(std::memory_order_relaxed)) {
    return Publish() ? StepOutcome::kWorked : StepOutcome::kNothingToDo;
  }
  StepPlan plan = Plan();
  const bool worked = plan.lane != Lane::kIdle || !in_flight_.empty();
  if (!worked && !held_.empty()) {
    wake_.Wait(limits_.max_constraint_step_ns);  // then look again who was cancelled, or is out of time
    Publish();
    return StepOutcome::kWorked;
  }
  const Status status = Run(std::move(plan));
  if (!status.ok()) LoseDevice(status);
  if (worked) stepped_ns_.store(clock_.NowNs(), std::memory_order_relaxed);
  return Publish() || worked ? StepOutcome::kWorked : StepOutcome::kNothingToDo;
}

// One step in flight: Forward, Sample, Collect, Apply of the plan. Two: while the device computes the plan,
// the step before it is collected and applied; so the plan is sampled knowing every token before it.
Status Engine::Impl::Run(StepPlan plan) {
  const bool idle = plan.lane == Lane::kIdle;
  if (!idle) {
    const int64_t begin_ns = clock_.NowNs();
    TM_ASSIGN_OR_RETURN(const StepTicket ticket, Forward(plan));
    const int64_t forwarded_ns = plan.lane == Lane::kPrefill ? clock_.NowNs() : 0;
    in_flight_.push_back({ticket, std::move(plan), begin_ns, forwarded_ns});
  }
  while (in_flight_.size() > (idle ? 0u : 1u)) TM_RETURN_IF_ERROR(CollectOldest());
  if (idle) return {};
  TM_RETURN_IF_ERROR(Sample(in_flight_.back().ticket, in_flight_.back().plan));
  return limits_.steps_in_flight == 1 ? CollectOldest() : Status::Ok();
}

Status Engine::Impl::CollectOldest() {
  TM_ASSIGN_OR_RETURN(StepResult result, Collect(in_flight_.front().ticket));
  Apply(in_flight_.front(), std::move(result));
  in_flight_.pop_front();
  return {};
}

void Engine::Impl::Drain() {
  for (std::shared_ptr<LiveRequest>& live : inbox_.TakeAll()) Begin(std::move(live));
}

void Engine::Impl::Reap() {
  ResumeWhatIsReady();
  if (lost_.load(std::memory_order_relaxed)) EndEverything(fatal_);
  ReapWaiting();
  for (const auto& active : active_) ReapRequest(*active);
  const size_t released = std::erase_if(active_, Releasable);
  if (released > 0 && active_.empty() && waiting_.empty()) CheckPages();
}

// A request that waits ends by what comes from outside alone: it is cancelled, it runs out of time, or the
// device is lost.
void Engine::Impl::ReapWaiting() {
  const int64_t cancels = cancels_->load(std::memory_order_acquire);
  const bool moved = std::exchange(cancels_seen_, cancels) != cancels;
  if (!moved && now_ns_ < waiting_end_ns_ && !lost_.load(std::memory_order_relaxed)) return;
  waiting_end_ns_ = kNever;
  for (const auto& waiting : waiting_) {
    ReapRequest(*waiting);
    waiting_end_ns_ = std::min(waiting_end_ns_, OutOfTimeNs(waiting->request()));
  }
  std::erase_if(waiting_, Releasable);
}

StepPlan Engine::Impl::Plan() {
  const int64_t preemptions = scheduler_.preemptions();
  StepPlan plan = scheduler_.Plan(now_ns_);
  if (scheduler_.preemptions() != preemptions) NoteHeld();
  const size_t alive = active_.size() + waiting_.size();
  TM_CHECK(plan.lane != Lane::kIdle || alive == 0 || !in_flight_.empty() || !held_.empty(),
           "%zu requests are alive and none can run", alive);
  for (const StepRow& row : plan.rows) LeaveQueue(*ChoiceOf(row.sequence).owner);
  return plan;
}

Status Engine::Impl::Sample(StepTicket ticket, const StepPlan& plan) {
  WaitForMasks(plan);
  sample_inputs_.choices.clear();
  for (const StepRow& row : plan.rows) {
    ActiveRequest& active = *ChoiceOf(row.sequence).owner;
    for (int32_t s = 0; s < row.ask.samples; ++s) {
      Choice& choice = active.choices[static_cast<size_t>(row.sequence->choice) + static_cast<size_t>(s)];
      if (!choice.history) choice.history = active.live->history_after_prompt;
      sample_inputs_.choices.push_back(
          {RowFor(active, choice.choice, choice.discarded + row.start + row.count), choice.history->adjusts(),
           MaskOf(choice)});
    }
  }
  return runner_.Sample(ticket, sample_inputs_);
}

void Engine::Impl::Apply(const InFlight& step, StepResult result) {
  const StepPlan& plan = step.plan;
  now_ns_ = clock_.NowNs();
  // A step that was queued behind another began when that one ended.
  const int64_t begin_ns = std::max(step.begin_ns, std::exchange(applied_ns_, now_ns_));
  scheduler_.Learn(plan, now_ns_ - begin_ns);
  if (plan.lane == Lane::kPrefill) NotePrefill(step, begin_ns);
  if (step_trace_->on()) Trace(plan, begin_ns);
  std::vector<RowOutcome> outcomes;
  outcomes.reserve(plan.rows.size());
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    const bool late = std::exchange(ChoiceOf(row.sequence).late, false);
    const bool counts =
        !late && !ChoiceOf(row.sequence).ended;  // not ended meanwhile, with the step in flight
    outcomes.push_back({.accepted = counts ? row.count : 0});
    if (!counts) continue;
    ApplyScores(*ChoiceOf(row.sequence).owner, row, std::move(result.rows[r].scores));
    ApplySamples(row, std::move(result.rows[r].samples));
  }
  scheduler_.Apply(plan, outcomes);
  for (const StepRow& row : plan.rows) DiscardWhatIsDue(*ChoiceOf(row.sequence).owner);

  ++counters_.steps;
  if (plan.lane == Lane::kPrefill) {
    ++counters_.prefill_steps;
    counters_.prompt_tokens += plan.tokens;
  } else {
    ++counters_.decode_steps;
  }
}

// A backend that runs ops before they return has computed the rows when Forward returns. Of one that is
// asynchronous the host learns that only with the samples, so there these count as prefill.
void Engine::Impl::NotePrefill(const InFlight& step, int64_t begin_ns) const {
  const int64_t end_ns = limits_.steps_in_flight == 1 ? step.forwarded_ns : now_ns_;
  for (const StepRow& row : step.plan.rows) {
    Timings& timings = row.sequence->timings;
    if (timings.first_token_ns != 0) continue;  // computed again after preemption
    timings.prefilled_ns = end_ns;
    timings.prefill_run_ns += end_ns - begin_ns;
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
  load.total_pages = store.total_pages();
  load.free_pages = store.free_pages();
  load.held_pages = store.held_pages();
  load.cached_pages = store.cached_pages();
  const std::vector<int64_t>& held_of_group = store.held_pages_of_group();
  std::copy(held_of_group.begin(), held_of_group.end(), load.held_pages_of_group.begin());
  const std::vector<int64_t>& cached_of_group = store.cached_pages_of_group();
  std::copy(cached_of_group.begin(), cached_of_group.end(), load.cached_pages_of_group.begin());
  load.prefix_queries = scheduler_.prefix_queries();
  load.prefix_hits = scheduler_.prefix_hits();
  load_.Set(load);
  if (step_output_ == nullptr || step_output_->empty()) return false;
  output_.Push();
  return true;
}

// ---- Drain --------------------------------------------------------------------------------------

void Engine::Impl::Begin(std::shared_ptr<LiveRequest> live) {
  auto active = std::make_unique<ActiveRequest>();
  const Request& request = live->request;
  active->live = std::move(live);
  active->seed = request.sampling.seed ? *request.sampling.seed : seeds_();
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  active->choices.resize(static_cast<size_t>(request.choices));
  for (int32_t c = 0; c < request.choices; ++c) {
    Choice& choice = active->choices[static_cast<size_t>(c)];
    choice.owner = active.get();
    choice.request = &request;
    choice.choice = c;
    choice.arrival = arrivals_;
    choice.tokens = std::move(active->live->tokens[static_cast<size_t>(c)]);
    const ContextPolicy& policy = *request.context_policy;
    const bool endless = policy.type != ContextPolicyType::kNone;
    const int64_t context = endless ? policy.n_ctx : limits_.context;
    choice.max_len = prompt_tokens + request.stopping.max_tokens.value_or(context - prompt_tokens);
    if (policy.type == ContextPolicyType::kReevaluate)
      Discard(choice, ViewAt(policy, prompt_tokens - 1).discarded);
    choice.timings.received_ns = request.received_ns;
    choice.timings.tokenized_ns = request.tokenized_ns;
    choice.usage.prompt_tokens = prompt_tokens;
    if (request.constraint.grammar != nullptr) {
      choice.constraint = std::make_shared<OutputConstraint>(active->live, limits_.max_constraint_step_ns);
    }
  }
  if (request.output.prompt_logprobs >= 0) active->prompt_logprobs.resize(request.prompt.size() - 1);
  ++arrivals_;
  scheduler_.Admit(&active->choices[0]);
  waiting_end_ns_ = std::min(waiting_end_ns_, OutOfTimeNs(request));
  if (active->live->stream->cancelled()) cancels_seen_ = -1;  // before it was here to be seen
  waiting_.push_back(std::move(active));
}

// ---- Reap ---------------------------------------------------------------------------------------

void Engine::Impl::ReapRequest(ActiveRequest& active) {
  const Request& request = active.request();
  if (active.live->stream->cancelled()) {
    EndRequest(active,
               {FinishReason::kCancelled, Status(StatusCode::kCancelled, "the request was cancelled")});
  }
  if (request.deadline_ns > 0 && now_ns_ >= request.deadline_ns) {
    EndRequest(active, {FinishReason::kError, Status(StatusCode::kDeadlineExceeded,
                                                     "the deadline passed before the request was finished")});
  }
  if (request.stopping.time_limit_ns > 0 && now_ns_ - request.received_ns >= request.stopping.time_limit_ns) {
    EndRequest(active, {FinishReason::kTimeLimit});
  }
  for (Choice& choice : active.choices) {
    const auto c = static_cast<size_t>(choice.choice);
    if (!choice.ended && active.live->stopped_by_text[c].load(std::memory_order_acquire)) {
      EndChoice(choice, {FinishReason::kStopSequence}, std::nullopt);
    }
  }
}

bool Engine::Impl::Releasable(const std::unique_ptr<ActiveRequest>& active) {
  return std::all_of(active->choices.begin(), active->choices.end(),
                     [](const Choice& choice) { return choice.ended && choice.steps_in_flight == 0; });
}

// Everything came back. (In debug builds the accounting is looked at after every step.)
void Engine::Impl::CheckPages() const {
  const KvStore& store = scheduler_.store();
  store.CheckAccounting();
  TM_CHECK(store.held_pages() == 0, "%lld pages are held and no request is alive",
           static_cast<long long>(store.held_pages()));
}

// ---- Plan ---------------------------------------------------------------------------------------

// The first plan that a request is in takes it out of what waits.
void Engine::Impl::LeaveQueue(ActiveRequest& active) {
  if (!active.queued) return;
  active.queued = false;
  inbox_.LeaveQueue(*active.live);
  const auto at = std::find_if(waiting_.begin(), waiting_.end(),
                               [&](const auto& waiting) { return waiting.get() == &active; });
  active_.push_back(std::move(*at));
  waiting_.erase(at);
}

// ---- Apply --------------------------------------------------------------------------------------

void Engine::Impl::ApplyScores(ActiveRequest& active, const StepRow& row, std::vector<ScoredToken> scores) {
  // Position p's logits score prompt token p + 1, which is entry p.
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i].token.token < 0) {
      ++counters_.failed_rows;
      return EndRequest(active, {FinishReason::kError, NotFinite()});
    }
    active.prompt_logprobs[static_cast<size_t>(row.ask.score_begin) + i] = InfoOf(std::move(scores[i]));
  }
}

void Engine::Impl::ApplySamples(const StepRow& row, std::vector<ScoredToken> samples) {
  Choice& first = ChoiceOf(row.sequence);
  if (first.ended) return;
  const bool scored_to_the_end = row.start + row.count == first.prompt_len();
  if (samples.empty()) {
    // max_tokens 0: nothing to sample, done once the whole prompt is computed.
    if (scored_to_the_end && first.max_len == first.prompt_len()) {
      EndRequest(*first.owner, {FinishReason::kLength});
    }
    return;
  }
  if (samples.size() > 1) ForkSiblings(first);
  for (size_t s = 0; s < samples.size(); ++s) {
    AcceptToken(first.owner->choices[static_cast<size_t>(first.choice) + s], std::move(samples[s]));
  }
}

void Engine::Impl::ForkSiblings(Choice& parent) {
  for (size_t c = 1; c < parent.owner->choices.size(); ++c) {
    Choice& sibling = parent.owner->choices[c];
    sibling.usage = parent.usage;
    scheduler_.Fork(parent, &sibling);
  }
}

void Engine::Impl::AcceptToken(Choice& choice, ScoredToken scored) {
  const int32_t token = scored.token.token;
  if (token < 0) {
    ++counters_.failed_rows;
    EndChoice(choice, {FinishReason::kError, WhyNoToken(choice)}, std::nullopt);
    return;
  }
  ++counters_.output_tokens;
  if (choice.timings.first_token_ns == 0) choice.timings.first_token_ns = now_ns_;
  choice.tokens.push_back(token);
  choice.history->Append(token);
  std::optional<ChoiceEnd> end = EndByToken(choice, token);
  if (end) {
    EndChoice(choice, *std::move(end), InfoOf(std::move(scored)));
    return;
  }
  Emit(choice).token = InfoOf(std::move(scored));
  if (choice.constraint != nullptr) FollowConstraint(choice, token);
}

std::optional<ChoiceEnd> Engine::Impl::EndByToken(const Choice& choice, int32_t token) const {
  const StoppingParams& stopping = choice.request->stopping;
  if (!stopping.ignore_eos && Contains(model_.eos_ids, token)) {
    return ChoiceEnd{FinishReason::kStop, {}, token};
  }
  if (Contains(stopping.stop_token_ids, token)) return ChoiceEnd{FinishReason::kStopSequence, {}, token};
  if (static_cast<int64_t>(choice.tokens.size()) >= choice.max_len) return ChoiceEnd{FinishReason::kLength};
  return std::nullopt;
}

// ---- discards -----------------------------------------------------------------------------------

// The tokens left are computed again once the step is applied that gave the one too many.
void Engine::Impl::DiscardWhatIsDue(ActiveRequest& active) {
  const ContextPolicy& policy = *active.request().context_policy;
  if (policy.type != ContextPolicyType::kReevaluate) return;
  for (Choice& choice : active.choices) {
    const bool decodes = !choice.ended && choice.state == SequenceState::kDecode;
    if (!decodes || static_cast<int64_t>(choice.tokens.size()) <= policy.n_ctx) continue;
    Discard(choice, policy.n_discard);
    scheduler_.Reevaluate(&choice);
    if (choice.held) NoteHeld();
  }
}

// The oldest behind those that are kept.
void Engine::Impl::Discard(Choice& choice, int64_t count) {
  const auto begin = choice.tokens.begin() + choice.request->context_policy->n_keep;
  choice.tokens.erase(begin, begin + count);
  choice.discarded += count;
  choice.max_len -= count;
}

// Tokens that the last row computed did not see any more.
int64_t Engine::Impl::Discarded(const Choice& choice) {
  const ContextPolicy& policy = *choice.request->context_policy;
  if (policy.type == ContextPolicyType::kNone || policy.type == ContextPolicyType::kReevaluate)
    return choice.discarded;
  const int64_t last_row = static_cast<int64_t>(choice.tokens.size()) - (choice.output_tokens() > 0 ? 2 : 1);
  return ViewAt(policy, last_row).left - policy.n_keep;
}

// ---- constraints --------------------------------------------------------------------------------

// While the device computes, where it is asynchronous. What is not filled in time is not waited for: its row
// sits this step out, and is computed again once its mask is there. Tokens depend on none of that.
void Engine::Impl::WaitForMasks(const StepPlan& plan) {
  const SteadyClock clock;  // real time: workers have no other
  const int64_t until_ns = clock.NowNs() + limits_.max_constraint_step_ns;
  while (IsWorthWaiting(plan)) {
    const int64_t left_ns = until_ns - clock.NowNs();
    if (left_ns <= 0) break;
    wake_.Wait(left_ns);
  }
  HoldLateRows(plan);
}

bool Engine::Impl::IsWorthWaiting(const StepPlan& plan) const {
  return std::any_of(plan.rows.begin(), plan.rows.end(), [](const StepRow& row) {
    const Choice& choice = ChoiceOf(row.sequence);
    const bool waits = choice.constraint != nullptr && !choice.ended && !choice.constraint->ready();
    return waits && !choice.held;
  });
}

void Engine::Impl::HoldLateRows(const StepPlan& plan) {
  for (const StepRow& row : plan.rows) {
    Choice& choice = ChoiceOf(row.sequence);
    if (choice.constraint == nullptr || choice.ended || row.ask.samples == 0) continue;
    choice.late = !choice.constraint->ready();
    if (choice.late) {
      Hold(choice);
    } else {
      Settle(choice);
    }
  }
}

void Engine::Impl::ResumeWhatIsReady() {
  for (size_t i = held_.size(); i-- > 0;) {
    Choice& choice = *held_[i];
    if (!choice.constraint->ready() || choice.late) continue;
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    Settle(choice);
    if (!choice.ended) scheduler_.Resume(&choice);
  }
}

// Those that the scheduler has held because it preempted them while their masks were being filled.
void Engine::Impl::NoteHeld() {
  for (const auto& active : active_) {
    for (Choice& choice : active->choices) {
      const bool noted = std::find(held_.begin(), held_.end(), &choice) != held_.end();
      if (choice.held && !choice.ended && !noted) held_.push_back(&choice);
    }
  }
}

void Engine::Impl::Hold(Choice& choice) {
  if (choice.held) return;
  scheduler_.Hold(&choice);
  held_.push_back(&choice);
}

// What the workers found out. REQUIRES: the constraint is ready.
void Engine::Impl::Settle(Choice& choice) {
  choice.undecided = false;
  counters_.constraint_ns += choice.constraint->TakeSpentNs();
  const Status fault = choice.constraint->fault();
  if (!fault.ok()) EndChoice(choice, {FinishReason::kError, fault}, std::nullopt);
}

// A choice that was slow before is not planned until its mask is there: it would only be computed in vain.
void Engine::Impl::FollowConstraint(Choice& choice, int32_t token) {
  ++counters_.constrained_tokens;
  const bool slow = choice.constraint->slow();
  choice.constraint->Follow(token);
  choice.undecided = true;
  if (!mask_workers_.Post(choice.constraint)) {
    return EndChoice(
        choice, {FinishReason::kError, ResourceExhausted("too many constraints are being followed at once")},
        std::nullopt);
  }
  if (slow) Hold(choice);
}

// What a matcher has gathered may be large: a worker frees it.
void Engine::Impl::AbandonConstraint(Choice& choice) {
  std::erase(held_, &choice);
  if (choice.constraint == nullptr) return;
  choice.constraint->Abandon();
  if (choice.constraint->ready()) mask_workers_.Post(std::move(choice.constraint));
  choice.constraint = nullptr;
}

std::span<const uint32_t> Engine::Impl::MaskOf(const Choice& choice) {
  if (choice.constraint == nullptr || choice.ended || choice.late) return {};
  return choice.constraint->mask();
}

Status Engine::Impl::WhyNoToken(const Choice& choice) const {
  if (choice.constraint == nullptr || AllowsAny(MaskOf(choice), choice.history->adjusts()))
    return NotFinite();
  return InvalidArgument(
      "the constraint allows no token here: the text is whole before stopping.min_tokens, or "
      "the vocabulary cannot go on with it");
}

// ---- ends ---------------------------------------------------------------------------------------

void Engine::Impl::EndRequest(ActiveRequest& active, const ChoiceEnd& end) {
  for (Choice& choice : active.choices) {
    if (!choice.ended) EndChoice(choice, end, std::nullopt);
  }
}

// The one way a choice ends for the engine thread.
void Engine::Impl::EndChoice(Choice& choice, ChoiceEnd end, std::optional<TokenInfo> last_token) {
  ActiveRequest& active = *choice.owner;
  choice.ended = true;
  choice.timings.finished_ns = now_ns_;
  counters_.discarded_tokens[static_cast<size_t>(choice.request->context_policy->type)] += Discarded(choice);
  if (end.status.code() == StatusCode::kInternal) scheduler_.Forget(&choice);  // a fault of what it computed
  scheduler_.Finish(&choice);
  AbandonConstraint(choice);

  ChoiceOutput& output = Emit(choice);
  output.token = std::move(last_token);
  output.end = std::move(end);

  const bool all_ended = std::all_of(active.choices.begin(), active.choices.end(),
                                     [](const Choice& other) { return other.ended; });
  if (!all_ended) return;
  ++counters_.finished_requests;
  if (output.end->reason == FinishReason::kCancelled) ++counters_.cancelled_requests;
  if (active.queued) inbox_.LeaveQueue(*active.live);
  active.queued = false;
}

void Engine::Impl::EndEverything(const Status& status) {
  for (const auto& waiting : waiting_) EndRequest(*waiting, {FinishReason::kError, status});
  for (const auto& active : active_) EndRequest(*active, {FinishReason::kError, status});
}

void Engine::Impl::LoseDevice(const Status& status) {
  fatal_ = Internal("the device is lost: " + status.message());
  lost_.store(true, std::memory_order_release);
  EndEverything(fatal_);
}

ChoiceOutput& Engine::Impl::Emit(Choice& choice) {
  ActiveRequest& active = *choice.owner;
  ChoiceOutput& output = step_output_->emplace_back();
  output.request = active.live;
  output.choice = choice.choice;
  if (choice.request->context_policy->type != ContextPolicyType::kNone)
    choice.usage.discarded_tokens = Discarded(choice);
  output.usage = choice.usage;
  output.timings = choice.timings;
  output.timings.finished_ns = now_ns_;
  if (!active.started) output.started = Started(active);
  return output;
}

StreamStarted Engine::Impl::Started(ActiveRequest& active) {
  active.started = true;
  StreamStarted started;
  started.prompt_tokens = active.choices[0].usage.prompt_tokens;
  started.cached_tokens = active.choices[0].usage.cached_tokens;
  started.seed = active.seed;
  const bool scored = std::all_of(active.prompt_logprobs.begin(), active.prompt_logprobs.end(),
                                  [](const TokenInfo& info) { return info.token >= 0; });
  if (scored) started.prompt_logprobs = std::move(active.prompt_logprobs);
  if (active.request().output.prompt_tokens) started.prompt = active.request().prompt;
  return started;
}

// ---- the public face ----------------------------------------------------------------------------

Engine::Engine(const EngineLimits& limits, const EngineModel& model, ModelRunner& runner,
               const Tokenizer* tokenizer, const Clock& clock)
    : impl_(std::make_unique<Impl>(limits, model, runner, tokenizer, clock)) {}
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
const EngineLimits& Engine::limits() const { return impl_->limits(); }
const OutputMetrics& Engine::output_metrics() const { return impl_->output_metrics(); }
std::shared_ptr<StepTrace> Engine::step_trace() const { return impl_->step_trace(); }
const KvLayout& Engine::kv_layout() const { return impl_->kv_layout(); }

}  // namespace tramontane
