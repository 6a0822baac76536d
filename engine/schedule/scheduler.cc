#include "engine/schedule/scheduler.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

// Who shares a prefix stays beside each other. Where all are of one kind nothing is moved.
void PutPlainRowsFirst(std::vector<StepRow>* rows) {
  if (std::is_partitioned(rows->begin(), rows->end(), IsPlain)) return;
  std::stable_partition(rows->begin(), rows->end(), IsPlain);
}

}  // namespace

Scheduler::Scheduler(const EngineLimits& limits, const KvLayout& layout, const StepCosts& costs, KvTier* tier)
    : limits_(limits),
      store_(layout, limits.pool_pages, limits.prefix_cache ? PrefixCache::kOn : PrefixCache::kOff,
             ChainedHash, tier, KvStore::LiveBlocks(layout, limits.max_sequences, limits.context)),
      costs_(costs),
      share_(limits_, store_, costs_),
      prompts_(store_, LeastChunk(layout, limits.max_step_tokens)),
      admission_(limits_, store_, share_, prompts_),
      preemption_(store_, admission_, prompts_, decode_),
      prefill_lane_(limits_, store_, share_, admission_, prompts_, decode_, preemption_) {
  TM_CHECK(limits.context <= ContextThatFits(layout, limits.pool_pages, limits.max_step_tokens),
           "a context of %lld tokens does not fit %lld pages", static_cast<long long>(limits.context),
           static_cast<long long>(limits.pool_pages));
  if (tier != nullptr && costs_.prefill.known()) store_.SetTokenNs(costs_.prefill.token_ns());
}

// ---- lanes --------------------------------------------------------------------------------------

StepPlan Scheduler::Plan(int64_t now_ns) {
  TM_CHECK(steps_in_flight() < limits_.steps_in_flight, "%d steps are in flight", steps_in_flight());
  store_.ForgetOrphans();
  preemption_.BeginPlan();
  admission_.BeginPlan(now_ns);
  preemption_.MoveSlots();
  StepPlan plan;
  plan.step = planned_steps_ + 1;
  const bool decode_waits = DecodeWaits();
  const bool decode_due = decode_waits && DecodeIsDue();
  if (decode_due) PlanDecode(&plan);
  if (plan.rows.empty()) prefill_lane_.Plan(&plan, now_ns);
  if (plan.rows.empty() && decode_waits && !decode_due) PlanDecode(&plan);
  store_.EndPlan();
  if (plan.rows.empty()) {
    TM_CHECK(steps_in_flight() > 0 || AnyHeld() || awaits_pages() || has_put_off() ||
                 (prompts_.empty() && !decode_waits && (admission_.ready().empty() || !decode_.empty())),
             "gridlock: %zu part-way, %zu in decode, %zu ready, %lld pages available", prompts_.all().size(),
             decode_.size(), admission_.ready().size(), static_cast<long long>(store_.available()));
    return {};
  }
  PutPlainRowsFirst(&plan.rows);
  prefill_run_ = plan.lane == Lane::kPrefill && decode_waits ? prefill_run_ + 1 : 0;
  ++planned_steps_;
  plan.wants.reserve(plan.rows.size());
  for (StepRow& row : plan.rows) {
    AskFor(row, &plan.wants);
    ++row.sequence->steps_in_flight_;
    plan.tokens += row.count;
  }
  return plan;
}

// The scores of what is known, then a draw for each choice that begins with its last position.
void Scheduler::AskFor(StepRow& row, std::vector<Want>* wants) {
  Sequence& sequence = *row.sequence;
  const int64_t end = EndOf(row);
  row.want_begin = static_cast<uint32_t>(wants->size());
  if (sequence.wants_scores()) {
    // Each token is scored once: not again after preemption, nor for the choices that share the prompt.
    int64_t& scored = sequence.scored_len_;
    scored = std::max(scored, sequence.ScoresBefore(row.start));
    for (const int64_t scored_end = sequence.ScoresBefore(end); scored < scored_end; ++scored) {
      const TokenToScore score = sequence.ToScore(scored);
      wants->push_back({score.position, Want::Kind::kScore, score.token});
    }
  }
  if (end >= sequence.prefill_len_ && end < sequence.max_len) {
    const bool is_prompt = end == sequence.prefill_len_ && sequence.output_tokens() == 0;
    for (int32_t c = 0; c < (is_prompt ? sequence.request->choices : 1); ++c)
      wants->push_back({end - 1, Want::Kind::kDraw, sequence.choice + c});
  }
  row.want_end = static_cast<uint32_t>(wants->size());
}

bool Scheduler::DecodeWaits() const {
  return std::any_of(decode_.begin(), decode_.end(),
                     [](const Sequence* s) { return s->decode_left() && !s->held_; });
}

// Whether decode comes before prefill in this step, where both could go.
bool Scheduler::DecodeIsDue() const {
  const bool has_had_prefill = prefill_run_ >= limits_.max_prefill_steps;
  return limits_.lane_policy == LanePolicy::kDecodeFirst ||
         (limits_.lane_policy == LanePolicy::kFair && has_had_prefill);
}

bool Scheduler::AnyHeld() const {
  return std::any_of(decode_.begin(), decode_.end(), [](const Sequence* s) { return s->held_; });
}

// One token for every sequence in decode, oldest first. Who goes is settled before any page is taken, so that
// no page given back by preemption becomes the target of a copy in the same step that copies from it.
void Scheduler::PlanDecode(StepPlan* plan) {
  plan->rows.reserve(decode_.size());
  int64_t promised = 0;
  rows_ = decode_;  // preemption shortens the list
  for (Sequence* sequence : rows_) {
    const bool is_preempted = sequence->state_ != SequenceState::kDecode;
    if (is_preempted || !sequence->decode_left() || preemption_.SitsOut(*sequence)) continue;
    const int64_t position = sequence->scheduled_len_;
    const auto needed = [&] { return store_.PagesNeeded(sequence->lease_, position, position + 1); };
    int64_t pages = needed();
    while (promised + pages > store_.available() && preemption_.MakeRoomFor(*sequence)) {
      pages = needed();  // less, when the preempted one shared the page to be written
    }
    if (promised + pages > store_.available()) continue;
    promised += pages;
    plan->rows.push_back({.sequence = sequence, .start = position, .count = 1});
  }
  if (plan->rows.empty()) return;
  plan->lane = Lane::kDecode;
  plan->cost = static_cast<int64_t>(plan->rows.size());
  for (const StepRow& row : plan->rows) {
    store_.Extend(row.sequence->lease_, row.start, row.start + 1, &plan->copies);
    plan->attended_keys += share_.AttendedKeys(*row.sequence, row.start, row.start + 1);
    ++row.sequence->scheduled_len_;
  }
}

// ---- results ------------------------------------------------------------------------------------

void Scheduler::Fork(Sequence& parent, Sequence* sequence) {
  TM_CHECK(parent.slots_ > 1 && sequence->state_ == SequenceState::kWaiting && sequence->slots_ == 0,
           "choice %d of request %s has no slot, or is there already", sequence->choice,
           parent.request->id.c_str());
  admission_.Fork(parent, sequence);
  sequence->state_ = SequenceState::kDecode;
  sequence->prefill_len_ = parent.prompt_len();
  sequence->scheduled_len_ = sequence->prefill_len_;
  sequence->accepted_len_ = sequence->prefill_len_;
  sequence->lease_ = store_.Fork(parent.lease_, sequence->prefill_len_);
  preemption_.ForkKept(parent, sequence);
  store_.Roll(sequence->lease_, sequence->accepted_len_);
  sequence->timings_ = parent.timings_;
  sequence->usage_ = parent.usage_;
  InsertByAge(decode_, sequence);
}

void Scheduler::KeepForBranches(Sequence& prompt) {
  TM_CHECK(prompt.state_ != SequenceState::kFinished && prompt.steps_in_flight_ == 1,
           "request %s has branches of a prompt that is not there", prompt.request->id.c_str());
  prompt.has_branches_ = true;
}

void Scheduler::Branch(Sequence& prompt, Sequence* branch) {
  TM_CHECK(prompt.has_branches_, "request %s has no branches", prompt.request->id.c_str());
  branch->prompt_ = &prompt;
  admission_.AddBranch(prompt, branch);
}

void Scheduler::Hold(Sequence* sequence) {
  TM_CHECK(sequence->state_ == SequenceState::kDecode,
           "choice %d of request %s is held, and is not in decode", sequence->choice,
           sequence->request->id.c_str());
  sequence->held_ = true;
}

void Scheduler::Resume(Sequence* sequence) {
  TM_CHECK(sequence->held_, "choice %d of request %s is not held", sequence->choice,
           sequence->request->id.c_str());
  sequence->held_ = false;
  if (sequence->state_ == SequenceState::kWaiting) admission_.MakeReady(sequence);
}

void Scheduler::Forget(Sequence* sequence) {
  store_.Forget(sequence->lease_);
  store_.Forget(sequence->kept_);
  store_.ForgetIdle(sequence->request->kv_owner.get());
}

void Scheduler::Finish(Sequence* sequence) {
  const SequenceState state = sequence->state_;
  if (state == SequenceState::kFinished) return;
  preemption_.LeaveLane(sequence);
  sequence->state_ = SequenceState::kFinished;
  if (state == SequenceState::kWaiting) admission_.Remove(sequence);
  if (sequence->steps_in_flight_ == 0) Release(sequence);
}

void Scheduler::Apply(const StepPlan& plan, const std::vector<RowOutcome>& outcomes) {
  TM_CHECK(plan.step == applied_steps_ + 1, "step %lld is applied after step %lld",
           static_cast<long long>(plan.step), static_cast<long long>(applied_steps_));
  TM_CHECK(outcomes.size() == plan.rows.size(), "%zu outcomes for %zu rows", outcomes.size(),
           plan.rows.size());
  ++applied_steps_;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    Sequence* sequence = row.sequence;
    --sequence->steps_in_flight_;
    const bool is_finished = sequence->state_ == SequenceState::kFinished;
    const int32_t refused = is_finished ? 0 : row.count - outcomes[i].accepted;
    TM_CHECK(refused == 0 || (refused > 0 && sequence->steps_in_flight_ == 0 && plan.lane == Lane::kDecode),
             "step %lld: %d of %d positions are accepted", static_cast<long long>(plan.step),
             outcomes[i].accepted, row.count);
    sequence->scheduled_len_ -= refused;
    sequence->accepted_len_ += outcomes[i].accepted;
    store_.Seal(sequence->lease_, sequence->tokens, sequence->names_end(), &sequence->path);
    if (is_finished) {
      if (sequence->steps_in_flight_ == 0) Release(sequence);
      continue;
    }
    preemption_.KeepPrefixOnceFull(sequence);
    store_.Roll(sequence->lease_, sequence->accepted_len_);
  }
}

void Scheduler::Learn(const StepPlan& plan, int64_t ns) {
  StepCostModel& model = plan.lane == Lane::kPrefill ? costs_.prefill : costs_.decode;
  model.Learn({plan.tokens, plan.attended_keys}, ns);
  if (store_.has_tier() && plan.lane == Lane::kPrefill) store_.SetTokenNs(model.token_ns());
}

// The only code by which a finished sequence's pages and slots go back.
void Scheduler::Release(Sequence* sequence) {
  preemption_.LetGoOfKept(sequence);
  if (sequence->has_branches_) {
    preemption_.KeepForBranches(sequence);
  } else if (sequence->leaves_idle) {
    store_.LeaveIdle(sequence->lease_, sequence->tokens, sequence->accepted_len_,
                     sequence->request->kv_owner);
  } else {
    store_.Release(sequence->lease_);
  }
  admission_.End(sequence);
}

}  // namespace tramontane
