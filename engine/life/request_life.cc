#include "engine/life/request_life.h"

#include <algorithm>
#include <utility>

#include "engine/request/step_bounds.h"

namespace tramontane {
namespace {

TokenInfo InfoOf(WantResult result) {
  return {result.token.token, result.token.logprob, result.rank, std::move(result.top)};
}

uint64_t TrulyRandom() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

RequestLife::RequestLife(const EngineLimits& limits, const EngineModel& model, Scheduler& scheduler,
                         Inbox& inbox, Signal& wake, CancelledStreams& cancelled, EngineLoad& counters)
    : limits_(limits),
      model_(model),
      scheduler_(scheduler),
      inbox_(inbox),
      counters_(counters),
      waiting_(cancelled),
      seeds_(TrulyRandom()),
      masks_(limits, scheduler, wake, counters) {}

// ---- begin and wait -----------------------------------------------------------------------------

void RequestLife::Begin(std::shared_ptr<LiveRequest> live) {
  const std::optional<uint64_t>& seed = live->request.sampling.seed;
  live->seed = seed ? *seed : seeds_();
  live->MakeChoices(limits_);
  scheduler_.Admit(&live->choices[0], arrivals_++);
  waiting_.Add(std::move(live));
}

void RequestLife::BeginBranches(int64_t most) {
  while (!branching_.empty()) {
    LiveRequest& live = *branching_.front();
    const bool has_ended = live.choices.empty() || live.choices[0].ended;
    for (; !has_ended && live.branches_to_make > 0 && most > 0; --most)
      scheduler_.Branch(live.choices[0], &live.MakeBranch());
    if (!has_ended && live.branches_to_make > 0) return;
    branching_.pop_front();
  }
}

void RequestLife::Reap() {
  EndFailed(masks_.ResumeWhatIsReady());
  ReapWaiting();
  ReapPlanned();
  const size_t released = std::erase_if(planned_, [](const auto& live) { return Release(*live); });
  const int64_t held = scheduler_.store().held_pages();
  TM_CHECK(released == 0 || alive() > 0 || held == 0, "%lld pages are held and no request is alive",
           static_cast<long long>(held));
}

// Those behind wait for the next step where the texts that end have many pages.
void RequestLife::ReapPlanned() {
  const int64_t most_pages = ended_pages_ + kPagesLetGo.most;
  has_more_planned_ = false;
  for (const auto& live : planned_) {
    has_more_planned_ = ended_pages_ >= most_pages;
    if (has_more_planned_) return;
    ReapRequest(*live);
  }
}

// A request that waits ends by what comes from outside alone: it is cancelled, it runs out of time, or the
// device is lost.
void RequestLife::ReapWaiting() {
  waiting_.EndDue(now_ns_, [this](LiveRequest& live) {
    ReapRequest(live);
    TM_CHECK(Release(live), "request %s waits, and nothing ends it", live.request.id.c_str());
  });
  counters_.waiting_visits = waiting_.visits();
}

void RequestLife::ReapRequest(LiveRequest& live) {
  const Request& request = live.request;
  if (live.output.stream->cancelled() && !live.all_ended()) {
    const LiveChoice& first = live.choices[0];
    const SequenceState state = first.ended ? SequenceState::kDecode : first.state();
    ++counters_.cancelled_in_state[static_cast<size_t>(std::min(state, SequenceState::kDecode))];
    EndRequest(live, {FinishReason::kCancelled, Status(StatusCode::kCancelled, "the request was cancelled")});
  }
  if (request.deadline_ns > 0 && now_ns_ >= request.deadline_ns) {
    EndRequest(live, {FinishReason::kError, Status(StatusCode::kDeadlineExceeded,
                                                   "the deadline passed before the request was finished")});
  }
  if (request.stopping.time_limit_ns > 0 && now_ns_ - request.received_ns >= request.stopping.time_limit_ns) {
    EndRequest(live, {FinishReason::kTimeLimit});
  }
  for (LiveChoice& choice : live.choices) {
    const auto c = static_cast<size_t>(choice.choice);
    if (!choice.ended && live.output.stopped_by_text[c].load(std::memory_order_acquire)) {
      EndChoice(choice, {FinishReason::kStopSequence}, std::nullopt);
    }
  }
}

// The output thread may hold the rest for longer.
bool RequestLife::Release(LiveRequest& live) {
  for (const auto* list : {&live.choices, &live.branches}) {
    for (const LiveChoice& choice : *list) {
      if (!choice.ended || choice.steps_in_flight() > 0) return false;
    }
  }
  live.branches = std::vector<LiveChoice>();  // their memory, too
  live.choices = std::vector<LiveChoice>();
  return true;
}

// ---- plans --------------------------------------------------------------------------------------

void RequestLife::NotePlan(const StepPlan& plan, bool preempted) {
  if (preempted) {  // some may be held, whose masks were being filled
    for (const auto& live : planned_) {
      for (LiveChoice& choice : live->choices) masks_.Note(choice);
    }
  }
  for (const StepRow& row : plan.rows) {
    LiveRequest& live = *ChoiceOf(row).live;
    if (!std::exchange(live.queued, false)) continue;
    inbox_.LeaveQueue(live);
    planned_.push_back(waiting_.Take(live));
  }
}

std::vector<const Sequence*> RequestLife::Sequences() const {
  std::vector<const Sequence*> sequences;
  for (const auto& live : planned_) {
    for (const auto* list : {&live->choices, &live->branches}) {
      for (const LiveChoice& choice : *list) sequences.push_back(&choice);
    }
  }
  return sequences;
}

LiveReport RequestLife::Report() const {
  LiveReport report;
  report.requests.reserve(std::min(planned_.size(), LiveReport::kRequests));
  for (const auto& live : planned_) {
    if (report.requests.size() == LiveReport::kRequests) break;
    LiveReport::OfRequest request = {.stream = live->output.stream.get()};
    for (const auto* list : {&live->choices, &live->branches}) {
      for (const LiveChoice& choice : *list) {
        request.state = std::max(request.state, choice.state());
        request.output_tokens += choice.is_branch() ? 0 : choice.output_tokens() + choice.discarded;
        request.pages += choice.lease().pages();
      }
    }
    report.requests.push_back(request);
  }
  return report;
}

void RequestLife::NotePrefilled(const StepPlan& plan, int64_t begin_ns, int64_t end_ns) {
  for (const StepRow& row : plan.rows) {
    LiveChoice& choice = ChoiceOf(row);
    Timings& moments = choice.is_branch() ? choice.live->choices[0].moments : choice.moments;
    if (moments.first_token_ns != 0) continue;     // computed again after preemption
    if (moments.prefilled_ns == end_ns) continue;  // another branch of the same step
    moments.prefilled_ns = end_ns;
    moments.prefill_run_ns += end_ns - begin_ns;
  }
}

const SampleInputs& RequestLife::InputsOf(const StepPlan& plan) {
  EndFailed(masks_.Wait(plan));
  sample_inputs_.choices.clear();
  for (const StepRow& row : plan.rows) {
    LiveRequest& live = *ChoiceOf(row).live;
    for (const Want& want : plan.WantsOf(row)) {
      if (want.kind != Want::Kind::kDraw) continue;
      LiveChoice& choice = live.choices[static_cast<size_t>(want.id)];
      if (!choice.history) choice.history = live.history_after_prompt;
      // In its place: a row made beside it and copied there waits for its own stores.
      ChoiceSampling& inputs = sample_inputs_.choices.emplace_back();
      choice.FillSamplingRow(want.position, &inputs.row);
      inputs.mask = choice.mask();
      choice.AllowWhatTheMaskAllows();
      inputs.history = &*choice.history;
    }
  }
  return sample_inputs_;
}

std::vector<RowOutcome> RequestLife::Take(const StepPlan& plan, StepResult result) {
  std::vector<RowOutcome> outcomes;
  outcomes.reserve(plan.rows.size());
  for (const StepRow& row : plan.rows) {
    LiveChoice& choice = ChoiceOf(row);
    const bool late = std::exchange(choice.late, false);
    if (plan.lane == Lane::kPrefill)
      counters_.recomputed_tokens += std::max<int64_t>(0, std::min(EndOf(row), choice.computed) - row.start);
    choice.computed = std::max(choice.computed, EndOf(row));
    const bool counts = !late && !choice.ended;  // not ended meanwhile, with the step in flight
    outcomes.push_back({.accepted = counts ? row.count : 0});
    if (counts) TakeRow(plan, row, result.wants);
  }
  return outcomes;
}

void RequestLife::TakeRow(const StepPlan& plan, const StepRow& row, std::vector<WantResult>& results) {
  LiveChoice& first = ChoiceOf(row);
  LiveRequest& live = *first.live;
  bool forks = plan.Draws(row) > 1;
  for (size_t i = row.want_begin; i < row.want_end; ++i) {
    if (results[i].kind == Want::Kind::kScore) {
      TakeScore(first, std::move(results[i]));
      if (first.ended) return;
      continue;
    }
    if (std::exchange(forks, false)) ForkSiblings(first);
    AcceptToken(live.choices[static_cast<size_t>(plan.wants[i].id)], std::move(results[i]));
  }
  // max_tokens 0: nothing is drawn, and the whole prompt is computed.
  if (EndOf(row) != first.max_len || first.ended) return;
  if (first.is_branch()) {
    EndBranch(first);
  } else {
    Branch(first);
  }
  if (live.branches_left == 0) EndRequest(live, {FinishReason::kLength});
}

void RequestLife::TakeScore(LiveChoice& choice, WantResult score) {
  if (score.token.token >= 0) return choice.scores.push_back(InfoOf(std::move(score)));
  ++counters_.failed_rows;
  EndRequest(*choice.live, {FinishReason::kError, NotFinite()});
}

// The prompt has given the scores of all first tokens. It ends for the scheduler; its choice goes on until
// the branches have given the others.
void RequestLife::Branch(LiveChoice& prompt) {
  LiveRequest& live = *prompt.live;
  live.PrepareBranches();
  if (live.branches_to_make == 0) return;
  branching_.push_back(live.shared_from_this());
  scheduler_.KeepForBranches(prompt);
  scheduler_.Finish(&prompt);
}

void RequestLife::ForkSiblings(LiveChoice& parent) {
  for (size_t c = 1; c < parent.live->choices.size(); ++c) {
    LiveChoice& sibling = parent.live->choices[c];
    sibling.moments = parent.moments;
    sibling.computed = parent.computed;
    scheduler_.Fork(parent, &sibling);
  }
}

void RequestLife::AcceptToken(LiveChoice& choice, WantResult drawn) {
  const int32_t token = drawn.token.token;
  if (token < 0) {
    ++counters_.failed_rows;
    EndChoice(choice, {FinishReason::kError, choice.WhyNoToken()}, std::nullopt);
    return;
  }
  ++counters_.output_tokens;
  if (choice.moments.first_token_ns == 0) choice.moments.first_token_ns = now_ns_;
  choice.tokens.push_back(token);
  choice.history->Append(token);
  std::optional<ChoiceEnd> end = EndByToken(choice, token);
  if (end) {
    EndChoice(choice, *std::move(end), InfoOf(std::move(drawn)));
    return;
  }
  Emit(choice).token = InfoOf(std::move(drawn));
  if (choice.constraint == nullptr) return;
  if (Status why = masks_.Follow(choice, token); !why.ok())
    EndChoice(choice, {FinishReason::kError, std::move(why)}, std::nullopt);
}

std::optional<ChoiceEnd> RequestLife::EndByToken(const LiveChoice& choice, int32_t token) const {
  const StoppingParams& stopping = choice.request->stopping;
  if (!stopping.ignore_eos && Contains(model_.eos_ids, token)) {
    return ChoiceEnd{FinishReason::kStop, {}, token};
  }
  if (Contains(stopping.stop_token_ids, token)) return ChoiceEnd{FinishReason::kStopSequence, {}, token};
  if (static_cast<int64_t>(choice.tokens.size()) >= choice.max_len) return ChoiceEnd{FinishReason::kLength};
  return std::nullopt;
}

void RequestLife::DiscardWhatIsDue(const StepPlan& plan) {
  for (const StepRow& row : plan.rows) {
    LiveRequest& live = *ChoiceOf(row).live;
    const ContextPolicy& policy = *live.request.context_policy;
    if (policy.type != ContextPolicyType::kReevaluate) continue;
    for (LiveChoice& choice : live.choices) {
      const bool decodes = !choice.ended && choice.state() == SequenceState::kDecode;
      if (!decodes || static_cast<int64_t>(choice.tokens.size()) <= policy.n_ctx) continue;
      choice.Discard(policy.n_discard);
      scheduler_.Reevaluate(&choice, arrivals_++);
      masks_.Note(choice);
    }
  }
}

// ---- ends ---------------------------------------------------------------------------------------

void RequestLife::EndRequest(LiveRequest& live, const ChoiceEnd& end) {
  for (LiveChoice& choice : live.choices) {
    if (!choice.ended) EndChoice(choice, end, std::nullopt);
  }
}

void RequestLife::EndFailed(MaskWaits::Failures failures) {
  for (auto& [choice, why] : failures)
    EndChoice(*choice, {FinishReason::kError, std::move(why)}, std::nullopt);
}

// The one way a choice ends for the engine thread.
void RequestLife::EndChoice(LiveChoice& choice, ChoiceEnd end, std::optional<TokenInfo> last_token) {
  LiveRequest& live = *choice.live;
  choice.ended = true;
  ended_pages_ += choice.lease().pages();
  counters_.discarded_tokens[static_cast<size_t>(choice.request->context_policy->type)] +=
      choice.DiscardedTokens();
  const bool is_fault = end.status.code() == StatusCode::kInternal;  // of what it computed
  if (is_fault) scheduler_.Forget(&choice);
  for (LiveChoice& branch : live.branches) {
    if (is_fault) scheduler_.Forget(&branch);
    EndBranch(branch);
  }
  scheduler_.EndBranches(choice);
  const bool ended_well = end.status.ok() && end.reason != FinishReason::kCancelled;
  choice.leaves_idle =
      ended_well && choice.request->kv_owner != nullptr && choice.request->candidates.empty();
  scheduler_.Finish(&choice);
  masks_.Abandon(choice);

  ChoiceOutput& output = Emit(choice);
  output.token = std::move(last_token);
  output.end = std::move(end);

  if (!live.all_ended()) return;
  ++counters_.finished_requests;
  if (output.end->reason == FinishReason::kCancelled) ++counters_.cancelled_requests;
  if (std::exchange(live.queued, false)) inbox_.LeaveQueue(live);
}

// The reader is told of the request alone.
void RequestLife::EndBranch(LiveChoice& branch) {
  if (std::exchange(branch.ended, true)) return;
  --branch.live->branches_left;
  ended_pages_ += branch.lease().pages();
  scheduler_.Finish(&branch);
}

void RequestLife::EndEverything(const Status& status) {
  const ChoiceEnd end = {FinishReason::kError, status};
  waiting_.EndAll([&](LiveRequest& live) { EndRequest(live, end); });
  for (const auto& live : planned_) EndRequest(*live, end);
}

ChoiceOutput& RequestLife::Emit(LiveChoice& choice) {
  LiveRequest& live = *choice.live;
  ChoiceOutput& output = step_output_->emplace_back();
  output.request = {live.shared_from_this(), &live.output};
  output.choice = choice.choice;
  output.usage = choice.usage();
  output.usage.prompt_tokens = std::ssize(choice.request->prompt);
  if (choice.request->context_policy->type != ContextPolicyType::kNone)
    output.usage.discarded_tokens = choice.DiscardedTokens();
  output.timings = choice.moments;
  output.timings.admitted_ns = choice.timings().admitted_ns;
  output.timings.first_chunk_ns = choice.timings().first_chunk_ns;
  output.timings.last_chunk_ns = choice.timings().last_chunk_ns;
  output.timings.finished_ns = now_ns_;
  for (const LiveChoice& branch : live.branches) {
    output.usage.prefill_chunks += branch.usage().prefill_chunks;
    output.usage.preemptions += branch.usage().preemptions;
    output.timings.last_chunk_ns = std::max(output.timings.last_chunk_ns, branch.timings().last_chunk_ns);
  }
  if (!live.started) output.started = std::make_unique<StreamStarted>(Started(live));
  return output;
}

StreamStarted RequestLife::Started(LiveRequest& live) {
  live.started = true;
  StreamStarted started;
  started.prompt_tokens = std::ssize(live.request.prompt);
  started.cached_tokens = live.choices[0].usage().cached_tokens;
  started.seed = live.seed;
  started.prompt_logprobs = live.TakeScores();
  if (live.request.output.prompt_tokens) started.prompt = live.request.prompt;
  return started;
}

}  // namespace tramontane
