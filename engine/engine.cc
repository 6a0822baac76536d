#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "engine/life/constrain/output_constraint.h"
#include "engine/request/step_bounds.h"

namespace tramontane {
namespace {

// Where nothing can go on but by others' work, which wakes the engine: how long cancels and deadlines wait.
constexpr int64_t kLookAgainNs = 5'000'000;

}  // namespace

Engine::Engine(const EngineLimits& limits, const EngineModel& model, ModelRunner& runner,
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

Engine::~Engine() {
  while ((step_output_ = output_.Back()) == nullptr) wake_.Wait(Signal::kForever);
  life_.BeginStep(step_output_, clock_.NowNs());
  EndEverything(Unavailable("the engine is shutting down"));
  Publish();
}

// ---- any thread ---------------------------------------------------------------------------------

StatusOr<std::shared_ptr<TokenStream>> Engine::Submit(Request request, std::function<void()> on_ready) {
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
  if (request.tokenized_ns == 0) request.tokenized_ns = request.received_ns;
  if (request.arrival.begun_ns == 0) request.arrival.begun_ns = request.received_ns;
  auto stream = std::make_shared<TokenStream>(request.id, std::move(on_ready), cancels_, unread_bytes_);
  auto live = std::make_shared<LiveRequest>(std::move(request), stream, tokenizer_, model_.eos_ids);
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
    return QueueFullError();
  }
  wake_.Notify();
  return stream;
}

Status Engine::QueueFullError() const {
  return ResourceExhausted("the queue is full: at most " + std::to_string(limits_.max_queued_requests) +
                           " requests (max_queued_requests) and " + std::to_string(limits_.max_queued_bytes) +
                           " bytes wait");
}

// Hashed here, so that the engine thread need not.
TextPath Engine::PathOf(const LiveRequest& live) const {
  TextPath path(live.identity, PlainBlocksEnd(live.identity.policy, model_.kv_layout),
                model_.kv_layout.format);
  path.Extend(live.request.prompt, std::ssize(live.request.prompt));
  return path;
}

// What the model and the pool say to a policy, beside the request itself.
Status Engine::CheckPolicyFits(const ContextPolicy& policy) const {
  if (policy.type == ContextPolicyType::kNone || policy.type == ContextPolicyType::kReevaluate) return {};
  const int64_t ahead = LeastChunk(model_.kv_layout, limits_.max_step_tokens);
  const int64_t pages = PagesUnderPolicy(model_.kv_layout, policy, ahead);
  if (pages <= limits_.pool_pages) return {};
  return InvalidArgument("is " + std::to_string(policy.n_ctx) + ", which takes " + std::to_string(pages) +
                         " pages while the text moves on; the pool has " + std::to_string(limits_.pool_pages))
      .WithField("context_policy.n_ctx", FieldForm::kSubject);
}

int64_t Engine::stalled_ns() const {
  if (idle()) return 0;
  const int64_t moved_ns =
      std::max(busy_since_ns_.load(std::memory_order_relaxed), stepped_ns_.load(std::memory_order_relaxed));
  return std::max<int64_t>(0, clock_.NowNs() - moved_ns);
}

EngineLoad Engine::Load() const {
  EngineLoad load = load_.Get();
  load.waiting = inbox_.queued();
  load.waiting_bytes = inbox_.queued_bytes();
  load.unread_bytes = unread_bytes_->load(std::memory_order_relaxed);
  return load;
}

StatusOr<std::shared_ptr<KvQuestion>> Engine::AskKv() {
  std::shared_ptr<KvQuestion> question = kv_questions_.Ask();
  if (question == nullptr) {
    return ResourceExhausted("at most " + std::to_string(KvQuestions::kMost) +
                             " questions for the KV cache's tables wait at once");
  }
  wake_.Notify();
  return question;
}

StatusOr<std::shared_ptr<LiveQuestion>> Engine::AskLive() {
  std::shared_ptr<LiveQuestion> question = live_questions_.Ask();
  if (question == nullptr) {
    return ResourceExhausted("at most " + std::to_string(Questions<LiveReport>::kMost) +
                             " questions for the requests that run wait at once");
  }
  wake_.Notify();
  return question;
}

Status Engine::StartTransfer(const std::shared_ptr<KvTransfer>& transfer) {
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

StepOutcome Engine::Step() {
  if (live_questions_.any()) {
    live_questions_.AnswerAll(std::make_shared<const LiveReport>(life_.Report()));
  }
  if (kv_questions_.any()) {
    kv_questions_.AnswerAll(
        std::make_shared<const KvReport>(ReportKv(scheduler_.store(), life_.Sequences())));
  }
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
  if (const Status status = copies ? kv_transfers_.Work(scheduler_.cache(), runner_) : Status();
      !status.ok()) {
    LoseDevice(status);
    Publish();
    return StepOutcome::kWorked;
  }
  StepPlan plan = Plan();
  const bool waits_for_disk = copies && kv_transfers_.waits_for_disk();
  const bool worked = (copies && !waits_for_disk) || plan.lane != Lane::kIdle || !in_flight_.empty() ||
                      !inbox_.empty() || life_.has_more_to_reap() || life_.has_more_branches() ||
                      scheduler_.has_put_off();
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

// One step in flight: Forward, Sample, Collect, Apply of the plan. Two: while the device computes the plan,
// the step before it is collected and applied; so the plan is sampled knowing every token before it.
Status Engine::Run(StepPlan plan) {
  const bool idle = plan.lane == Lane::kIdle;
  if (tier_ != nullptr && scheduler_.store().has_moves()) {
    TM_RETURN_IF_ERROR(MovePages(idle && in_flight_.empty()));
  }
  if (!idle) {
    const int64_t begin_ns = clock_.NowNs();
    TM_ASSIGN_OR_RETURN(const StepTicket ticket, runner_.Forward(plan));
    const int64_t forwarded_ns = plan.lane == Lane::kPrefill ? clock_.NowNs() : 0;
    in_flight_.push_back({ticket, std::move(plan), moves_, begin_ns, forwarded_ns});
  }
  while (in_flight_.size() > (idle ? 0u : 1u)) TM_RETURN_IF_ERROR(CollectOldest());
  if (idle) return {};
  const InFlight& newest = in_flight_.back();
  TM_RETURN_IF_ERROR(runner_.Sample(newest.ticket, life_.InputsOf(newest.plan)));
  return limits_.steps_in_flight == 1 ? CollectOldest() : Status::Ok();
}

// What is evicted, and what comes back, in front of the step that was planned with it. Where there is no step
// whose end could tell that they are done they are waited for.
Status Engine::MovePages(bool waits) {
  const KvStore::Moves moves = scheduler_.cache().TakeMoves();
  moves_ = moves.batch;
  TM_RETURN_IF_ERROR(runner_.MovePages(moves.list));
  if (!waits) return {};
  TM_RETURN_IF_ERROR(runner_.ReadPages({}));
  scheduler_.cache().MovesDone(moves_);
  return {};
}

Status Engine::CollectOldest() {
  TM_ASSIGN_OR_RETURN(StepResult result, runner_.Collect(in_flight_.front().ticket));
  if (tier_ != nullptr) scheduler_.cache().MovesDone(in_flight_.front().moves);
  Apply(in_flight_.front(), std::move(result));
  in_flight_.pop_front();
  return {};
}

// A step begins so many choices at most, branches among them; those behind wait for the next one. Where
// branches wait, too, half of it is for what comes.
void Engine::Drain() {
  int64_t left = kChoicesBegun.most;
  const int64_t for_branches = life_.has_more_branches() ? left / 2 : 0;
  while (left > for_branches) {
    std::shared_ptr<LiveRequest> live = inbox_.Pop();
    if (live == nullptr) break;
    left -= live->request.choices;
    life_.Begin(std::move(live));
  }
  life_.BeginBranches(left);
}

void Engine::Reap() {
  if (lost_.load(std::memory_order_relaxed)) EndEverything(fatal_);
  life_.Reap();
}

void Engine::EndEverything(const Status& status) {
  do {
    Drain();
    life_.EndEverything(status);
  } while (!inbox_.empty());
}

StepPlan Engine::Plan() {
  const int64_t preemptions = scheduler_.preemptions();
  StepPlan plan = scheduler_.Plan(now_ns_);
  life_.NotePlan(plan, scheduler_.preemptions() != preemptions);
  const size_t alive = life_.alive();
  TM_CHECK(plan.lane != Lane::kIdle || alive == 0 || !in_flight_.empty() || life_.waits_for_masks() ||
               scheduler_.awaits_pages() || scheduler_.has_put_off(),
           "%zu requests are alive and none can run", alive);
  return plan;
}

void Engine::Apply(const InFlight& step, StepResult result) {
  const StepPlan& plan = step.plan;
  now_ns_ = clock_.NowNs();
  life_.set_now_ns(now_ns_);
  // A step that was queued behind another began when that one ended.
  const int64_t begin_ns = std::max(step.begin_ns, std::exchange(applied_ns_, now_ns_));
  scheduler_.Learn(plan, now_ns_ - begin_ns);
  step_metrics_.OnStep(plan, now_ns_ - begin_ns);
  // A backend that runs ops before they return has computed the rows when Forward returns. Of one that is
  // asynchronous the host learns that only with the samples, so there these count as prefill.
  const int64_t prefilled_ns = limits_.steps_in_flight == 1 ? step.forwarded_ns : now_ns_;
  if (plan.lane == Lane::kPrefill) life_.NotePrefilled(plan, begin_ns, prefilled_ns);
  if (step_trace_->on()) {
    step_trace_->Add({.step = plan.step,
                      .begin_ns = begin_ns,
                      .end_ns = now_ns_,
                      .lane = plan.lane,
                      .rows = static_cast<int32_t>(plan.rows.size()),
                      .tokens = plan.tokens,
                      .held_pages = scheduler_.store().held_pages()});
  }
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

// True when there was something to tell.
bool Engine::Publish() {
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
  std::ranges::copy(store.pool().held_pages_of_group(), load.held_pages_of_group.begin());
  std::ranges::copy(store.pool().cached_pages_of_group(), load.cached_pages_of_group.begin());
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

void Engine::LoseDevice(const Status& status) {
  fatal_ = Internal("the device is lost: " + status.message());
  lost_.store(true, std::memory_order_release);
  EndEverything(fatal_);
}

}  // namespace tramontane
