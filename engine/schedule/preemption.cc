#include "engine/schedule/preemption.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

// A plan sets aside so many at most, and none after one with so many pages: giving them up takes time.
constexpr int kMostSetAside = 8;
constexpr int64_t kManyPages = 1024;

}  // namespace

Preemption::Preemption(KvStore& store, Admission& admission, PartWay& prompts, std::vector<Sequence*>& decode)
    : store_(store),
      admission_(admission),
      prompts_(prompts),
      decode_(decode),
      has_window_(std::any_of(store.layout().groups.begin(), store.layout().groups.end(),
                              [](const auto& group) { return group.window > 0; })) {}

bool Preemption::MakeRoomFor(const Sequence& sequence) {
  if (LetGoOfSomeKept()) return true;  // else nothing is kept
  if (Sequence* held = HeldWithPages()) {
    Preempt(held);
    return true;
  }
  Sequence* youngest = nullptr;
  for (const auto* list : {&prompts_.all(), &std::as_const(decode_)}) {
    if (!list->empty() && (youngest == nullptr || Older(*youngest, *list->back()))) youngest = list->back();
  }
  if (youngest == nullptr || !Older(sequence, *youngest)) return false;
  if (youngest->steps_in_flight_ > 0) {
    victim_in_flight_ = youngest;
    return false;
  }
  Preempt(youngest);
  return true;
}

// Of those not in flight; null when there is none.
Sequence* Preemption::HeldWithPages() const {
  const auto found = std::find_if(decode_.begin(), decode_.end(),
                                  [](const Sequence* s) { return s->held_ && s->steps_in_flight_ == 0; });
  return found == decode_.end() ? nullptr : *found;
}

void Preemption::Preempt(Sequence* sequence) {
  ++sequence->usage_.preemptions;
  ++preemptions_;
  SendBack(sequence);
}

void Preemption::Reevaluate(Sequence* sequence, int64_t arrival) {
  TM_CHECK(sequence->state_ == SequenceState::kDecode && sequence->steps_in_flight_ == 0,
           "choice %d of request %s is to be computed again while it is computed", sequence->choice,
           sequence->request->id.c_str());
  KeepPrefix(sequence);
  admission_.RankAnew(sequence, arrival);
  if (sequence->has_kept() && RemoveFrom(keepers_, sequence)) InsertByAge(keepers_, sequence);
  SendBack(sequence);
}

void Preemption::LeaveLane(Sequence* sequence) {
  if (sequence->state_ == SequenceState::kPrefill) prompts_.Remove(sequence);
  if (sequence->state_ == SequenceState::kDecode) RemoveFrom(decode_, sequence);
}

void Preemption::GiveBack(Sequence* sequence) {
  LeaveLane(sequence);
  admission_.GiveBack(sequence);
  sequence->state_ = SequenceState::kWaiting;
  sequence->held_ = sequence->held_ || sequence->undecided;
}

void Preemption::SendBack(Sequence* sequence) {
  GiveBack(sequence);
  if (!sequence->held_) admission_.MakeReady(sequence);
}

// ---- slots of others -------------------------------------------------------------------------------

void Preemption::MoveSlots() {
  for (int moved = 0; moved < kMostSetAside; ++moved) {
    Sequence* next = admission_.LacksSlots();
    if (next == nullptr || !SetAsideFor(next)) return;
  }
}

// Afterwards that caller holds its part at least, so it is not its turn to take them back. False: nobody was,
// or no more is to be in this plan.
bool Preemption::SetAsideFor(Sequence* next) {
  const Callers& callers = admission_.callers();
  CallerShare* most = callers.WithMostSlots();
  if (most == nullptr || most == next->caller_) return false;
  const int32_t spare = callers.SpareSlots(*most);
  if (spare < next->wanted_slots_ - admission_.free_slots()) return false;
  Sequence* youngest = YoungestOf(*most, next->request->share.priority);
  if (youngest == nullptr || youngest->slots_ > spare) return false;
  if (youngest->steps_in_flight_ > 0) {
    set_aside_later_ = youngest;
    return false;
  }
  const int64_t pages = youngest->lease_.pages();
  SetAside(youngest);
  admission_.KeepSlotsFor(next);
  return pages < kManyPages;
}

// Of no better priority than that, and not the oldest with pages; null: there is none.
Sequence* Preemption::YoungestOf(const CallerShare& caller, int32_t priority) const {
  const Sequence* oldest = nullptr;
  for (const auto* list : {&prompts_.all(), &std::as_const(decode_)}) {
    if (!list->empty() && (oldest == nullptr || Older(*list->front(), *oldest))) oldest = list->front();
  }
  Sequence* youngest = nullptr;
  const auto look = [&](const auto& list) {
    const auto found = std::find_if(list.rbegin(), list.rend(), [&](const Sequence* s) {
      return s->caller_ == &caller && s->request->share.priority >= priority && s != oldest;
    });
    if (found != list.rend() && (youngest == nullptr || Older(*youngest, **found))) youngest = *found;
  };
  look(admission_.ready());
  look(prompts_.all());
  look(decode_);
  return youngest;
}

void Preemption::SetAside(Sequence* sequence) {
  ++set_aside_;
  if (sequence->state_ != SequenceState::kWaiting) {
    ++sequence->usage_.preemptions;
    ++preemptions_;
    GiveBack(sequence);
  }
  admission_.GiveUpSlots(sequence);
}

// ---- prefixes that are kept ------------------------------------------------------------------------

// Unless a window has let go of some already, or a hit began behind them: what comes after the discard then
// begins with what the cache knows.
void Preemption::KeepPrefix(Sequence* sequence) {
  const int64_t prefix = sequence->prefix_to_keep();
  if (prefix == 0 || sequence->has_kept()) return;
  for (size_t group = 0; group < sequence->lease_.tables.size(); ++group) {
    const bool has_hole = !sequence->lease_.begins.empty() && sequence->lease_.begins[group] > 0;
    if (sequence->lease_.tables[group].kv_base > 0 || has_hole) return;
  }
  sequence->kept_ = store_.Fork(sequence->lease_, prefix);
  InsertByAge(keepers_, sequence);
}

// Before a window rolls over them, and not before their pages are full: a sequence that shares one that it
// goes on in would have to copy it. Without windows they are the lease's own until the discard.
void Preemption::KeepPrefixOnceFull(Sequence* sequence) {
  const int64_t prefix = has_window_ ? sequence->prefix_to_keep() : 0;
  if (prefix == 0 || sequence->has_kept()) return;
  if (sequence->accepted_len_ >= store_.paging().RoundUp(prefix)) KeepPrefix(sequence);
}

// All pages of a prompt that has ended.
void Preemption::KeepForBranches(Sequence* prompt) {
  store_.Roll(prompt->lease_, prompt->accepted_len_);
  prompt->kept_ = std::exchange(prompt->lease_, store_.NewLease());
  InsertByAge(keepers_, prompt);
}

void Preemption::ForkKept(const Sequence& parent, Sequence* sequence) {
  if (!parent.has_kept()) return KeepPrefixOnceFull(sequence);
  sequence->kept_ = store_.Fork(parent.kept_, parent.prefix_to_keep());
  InsertByAge(keepers_, sequence);
}

void Preemption::LetGoOfKept(Sequence* sequence) {
  if (sequence->is_branch() || !sequence->has_kept()) return;
  RemoveFrom(keepers_, sequence);
  store_.Release(sequence->kept_);
  sequence->kept_ = {};
}

// They save computing and are no condition for anything, so they go before anybody is preempted or waits: the
// youngest sequence's first, until some page is available again. (In a group without a window they are its
// lease's pages, too. Branches that are ready see when they begin that nothing is kept for them.)
bool Preemption::LetGoOfSomeKept() {
  const int64_t available = store_.available();
  while (!keepers_.empty() && store_.available() == available) {
    Sequence* sequence = keepers_.back();
    LetGoOfKept(sequence);
    if (sequence->state_ == SequenceState::kWaiting && !sequence->held_) admission_.Expect(sequence);
  }
  return store_.available() > available;
}

}  // namespace tramontane
