#include "engine/schedule/prefill_lane.h"

#include <algorithm>
#include <iterator>

namespace tramontane {

PrefillLane::PrefillLane(const EngineLimits& limits, KvStore& store, const PrefillShare& share,
                         Admission& admission, PartWay& prompts, std::vector<Sequence*>& decode,
                         Preemption& preemption)
    : limits_(limits),
      store_(store),
      share_(share),
      admission_(admission),
      prompts_(prompts),
      decode_(decode),
      preemption_(preemption) {}

// The sharing rule: half of the budget for the oldest prompt; the rest for prompts that fit into it whole, in
// order; what they leave goes to the shortest remaining, the oldest among them.
void PrefillLane::Plan(StepPlan* plan, int64_t now_ns) {
  if (prompts_.empty() && admission_.ready().empty()) return;
  plan_ = plan;
  prompts_.UpdateAll();
  if (!admission_.ready().empty()) LetGoOfWhatIsInTheWay(admission_.ready().front());
  const PrefillBudget budget = left_ = share_.OfStep(prompts_.all(), decode_);
  GiveOldest();
  GiveOthers();
  if (plan->rows.empty()) return;
  plan->lane = Lane::kPrefill;
  plan->cost = share_.TokenEquivalents(budget.parts - left_.parts);
  FinishRows(now_ns);
}

// ---- who gets how much --------------------------------------------------------------------------

// Half of the budget, rounded up, and at least one token, whatever it costs. For want of pages the oldest
// preempts.
void PrefillLane::GiveOldest() {
  const PrefillBudget half = left_.Half();
  Sequence* oldest = OldestPrompt(half);
  if (oldest == nullptr || preemption_.SitsOut(*oldest)) return;
  const auto may_go = [&] { return oldest->state() != SequenceState::kWaiting || MayStart(*oldest, half); };
  while (!Give(oldest, half, Least::kOneToken) && may_go() && preemption_.MakeRoomFor(*oldest)) {
  }
}

// The oldest of all prompts that are part-way or may start with this share; null when there is none.
Sequence* PrefillLane::OldestPrompt(const PrefillBudget& share) const {
  Sequence* part_way = prompts_.empty() ? nullptr : prompts_.all().front();
  Sequence* waiting = admission_.FirstReady();
  const bool waiting_is_older = waiting != nullptr && (part_way == nullptr || Older(*waiting, *part_way));
  return waiting_is_older && MayStart(*waiting, share) ? waiting : part_way;
}

// First those that are not ahead of other callers' prompts; what these leave goes to anybody.
void PrefillLane::GiveOthers() {
  if (admission_.callers().several() && left_.tokens > 0) {
    lead_.emplace(prompts_.all(), admission_.ready(), limits_.max_step_tokens);
    GiveShortPrompts();
    lead_.emplace(prompts_.all(), admission_.ready(), limits_.max_step_tokens);
    GiveShortestRemaining();
    lead_.reset();
  }
  GiveShortPrompts();
  GiveShortestRemaining();
}

// In order of age: those that have begun, then those that wait. Each is done in this step unless the budget
// or the pages end, so at most one of them is left part-way.
void PrefillLane::GiveShortPrompts() {
  for (Sequence* sequence : prompts_.all()) {
    if (sequence->fits_one_chunk() && !IsAhead(*sequence)) Give(sequence, left_);
  }
  const std::deque<Sequence*>& ready = admission_.ready();
  for (size_t i = 0; i < ready.size() && left_.tokens > 0;) {
    Sequence* sequence = ready[i];
    if (!sequence->fits_one_chunk() || sequence->awaits_pages() || IsAhead(*sequence)) {
      ++i;
      continue;
    }
    if (!MayStart(*sequence, left_) || !Give(sequence, left_)) return;  // leaves `ready` otherwise
  }
}

// Among those part-way and the first that waits, then those behind it: they start in order of age.
void PrefillLane::GiveShortestRemaining() {
  if (left_.tokens == 0) return;
  shortest_.clear();
  std::copy_if(prompts_.all().begin(), prompts_.all().end(), std::back_inserter(shortest_),
               [](const Sequence* sequence) { return sequence->prefill_left() > 0; });
  if (Sequence* waiting = admission_.FirstLongPrompt()) shortest_.push_back(waiting);
  std::erase_if(shortest_, [this](const Sequence* sequence) { return IsAhead(*sequence); });
  std::sort(shortest_.begin(), shortest_.end(), [this](const Sequence* a, const Sequence* b) {
    const int64_t a_left = share_.RemainingParts(*a);
    const int64_t b_left = share_.RemainingParts(*b);
    return a_left != b_left ? a_left < b_left : Older(*a, *b);
  });
  for (Sequence* sequence : shortest_) {
    if (sequence->state() == SequenceState::kWaiting && !MayStart(*sequence, left_)) continue;
    Give(sequence, left_);
  }
  while (left_.tokens > 0) {
    Sequence* waiting = admission_.FirstLongPrompt();
    if (waiting == nullptr || IsAhead(*waiting)) return;
    if (!MayStart(*waiting, left_) || !Give(waiting, left_)) return;
  }
}

// As much of the share as the sequence can use, with the pages for it; false: nothing. How much a waiting one
// can use is known once it has leased what the store knows of its tokens, which it gives back if it gets
// none.
bool PrefillLane::Give(Sequence* sequence, PrefillBudget share, Least least) {
  if (preemption_.SitsOut(*sequence)) return false;
  const bool waits = sequence->state() == SequenceState::kWaiting;
  if (waits) admission_.Begin(sequence);
  const int64_t start = sequence->scheduled_len();
  if (least == Least::kOneToken) {
    const PrefillBudget one = share_.ChunkOf(*sequence, start, start + 1);
    share.parts = std::max(share.parts, one.parts);
    share.ns = std::max(share.ns, one.ns);
  }
  StepRow* row = waits ? nullptr : FindRow(sequence);
  const int64_t end = start + LongestChunk(*sequence, share);
  // Less may be known than when it was made ready, and then it is not done at once.
  const bool lacks_turn = waits && end < sequence->prefill_len() && !HasTurn(*sequence);
  if (end > start && !lacks_turn) {
    Commit({sequence, start, share_.ChunkOf(*sequence, start, end)}, row);
    return true;
  }
  if (waits) admission_.GiveBack(sequence);
  if (lacks_turn) admission_.Expect(sequence);
  return false;
}

// Within the pages that no older prompt part-way still needs.
int64_t PrefillLane::LongestChunk(const Sequence& sequence, const PrefillBudget& share) const {
  return share_.LongestChunk(sequence, share, store_.available() - prompts_.PagesOfOlder(sequence));
}

void PrefillLane::Commit(const Grant& grant, StepRow* row) {
  Sequence* sequence = grant.sequence;
  const auto count = static_cast<int32_t>(grant.takes.tokens);
  store_.Extend(sequence->lease_, grant.start, grant.start + count, &plan_->copies);
  sequence->scheduled_len_ += count;
  left_.Take(grant.takes);
  if (row != nullptr) {
    row->count += count;
  } else {
    plan_->rows.push_back({.sequence = sequence, .start = grant.start, .count = count});
  }
  if (sequence->state_ == SequenceState::kPrefill) return prompts_.Update(sequence);
  admission_.Remove(sequence);
  sequence->state_ = SequenceState::kPrefill;
  admission_.Charge(sequence);
  prompts_.Add(sequence);
  sequence->lease_.found = {};
  if (sequence->usage_.prefill_chunks > 0 || sequence->is_branch()) return;  // its prompt was counted
  sequence->usage_.cached_tokens = sequence->accepted_len_;
  prefix_queries_ += static_cast<int64_t>(sequence->request->prompt.size());
  prefix_hits_ += sequence->accepted_len_;
}

StepRow* PrefillLane::FindRow(const Sequence* sequence) const {
  const auto row = std::find_if(plan_->rows.begin(), plan_->rows.end(),
                                [&](const StepRow& r) { return r.sequence == sequence; });
  return row == plan_->rows.end() ? nullptr : &*row;
}

void PrefillLane::FinishRows(int64_t now_ns) {
  for (StepRow& row : plan_->rows) {
    Sequence* sequence = row.sequence;
    plan_->attended_keys += share_.AttendedKeys(*sequence, row.start, EndOf(row));
    ++sequence->usage_.prefill_chunks;
    if (sequence->timings_.first_chunk_ns == 0) sequence->timings_.first_chunk_ns = now_ns;
    if (sequence->prefill_left() > 0) continue;
    if (sequence->output_tokens() == 0) sequence->timings_.last_chunk_ns = now_ns;
    sequence->state_ = SequenceState::kDecode;
  }
  const auto decoded = std::ssize(decode_);
  prompts_.TakePlanned(&decode_);
  std::inplace_merge(decode_.begin(), decode_.begin() + decoded, decode_.end(), IsOlder());
}

// ---- who may start ------------------------------------------------------------------------------

// Where the pool is too small for the oldest that waits, nobody starts in front of it.
bool PrefillLane::MayStart(const Sequence& sequence, const PrefillBudget& share) const {
  const int64_t end = sequence.next_position() + LongestChunk(sequence, share);
  if (end != sequence.prefill_len() && !HasTurn(sequence)) return false;
  const Sequence* oldest = admission_.ready().front();
  return HasPagesToStart(*oldest) && (&sequence == oldest || HasPagesToStart(sequence)) &&
         !admission_.PutsOffBegins();
}

// One prefill turn is kept for prompts that fit one chunk. Where there is only one it goes by age, so that
// they cannot hold it for ever.
bool PrefillLane::HasTurn(const Sequence& sequence) const {
  const int32_t turns = limits_.max_partial_prefills;
  if (prompts_.unplanned() >= turns) return false;
  if (turns == 1) return &sequence == admission_.FirstReady();
  return sequence.fits_one_chunk() || prompts_.long_unplanned() < turns - 1;
}

// The pool holds what every prompt part-way still needs, one more page per group for every sequence in
// decode, and this sequence's whole prefill. What it keeps counts as its own, though windows do not give it
// back: it is the first to be let go where that is missed.
bool PrefillLane::HasPagesToStart(const Sequence& sequence) const {
  return PagesToStart(sequence) <= store_.available();
}

int64_t PrefillLane::PagesToStart(const Sequence& sequence) const {
  const auto groups = std::ssize(store_.layout().groups);
  const Lease& start = sequence.has_kept() ? sequence.kept() : sequence.lease();
  return prompts_.PagesToStart(start, sequence.prefill_len()) +
         (sequence.lease().expected.ends_within_page ? groups : 0) + prompts_.pages() +
         std::ssize(decode_) * groups;
}

// What is kept for discards, so that the oldest that waits does not wait for it; nor for room to copy a page
// of what its owner left, which goes then.
void PrefillLane::LetGoOfWhatIsInTheWay(Sequence* first) {
  while (preemption_.keeps_any() && !HasPagesToStart(*first) && preemption_.LetGoOfSomeKept()) {
  }
  const auto groups = std::ssize(store_.layout().groups);
  const bool lacks_copies = first->lease().expected.ends_within_page && !first->has_kept() &&
                            !HasPagesToStart(*first) && PagesToStart(*first) - groups <= store_.available();
  if (!lacks_copies) return;
  store_.ForgetIdle(first->request->kv_owner.get());
  admission_.Expect(first);
}

}  // namespace tramontane
