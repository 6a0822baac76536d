// Preemption: who gives pages up when an older sequence finds none, and what is kept for discards and for the
// branches of prompts, which goes first. engine/schedule/README.md says why everything finishes.
//
// Engine thread only; the scheduler's. Always: nobody is preempted in flight, nor the oldest with pages but
// where it is held.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/admission.h"
#include "engine/schedule/part_way.h"

namespace tramontane {

class Preemption {
 public:
  // All are borrowed. `decode`: oldest first.
  Preemption(KvStore& store, Admission& admission, PartWay& prompts, std::vector<Sequence*>& decode);

  void BeginPlan() { victim_in_flight_ = set_aside_later_ = nullptr; }
  bool SitsOut(const Sequence& sequence) const {
    return sequence.held() || victim_in_flight_ == &sequence || set_aside_later_ == &sequence;
  }
  // Where a caller with less than its part of the slots waits for some, the youngest sequences of that with
  // most of them are set aside: they give up their pages and their slots, and wait for slots to go on. A few
  // a plan.
  void MoveSlots();
  // Lets go of what is kept; else preempts a held sequence with pages, or else the youngest one,
  // if it is younger than this one. False when there is none, or when it is in flight: then it sits this plan
  // out, and is preempted once its steps are applied.
  bool MakeRoomFor(const Sequence& sequence);
  // As Scheduler::Reevaluate.
  void Reevaluate(Sequence* sequence, int64_t arrival);
  void LeaveLane(Sequence* sequence);
  int64_t preemptions() const { return preemptions_; }
  int64_t set_aside() const { return set_aside_; }  // those without pages, too, which are not preempted

  // ---- prefixes that are kept ----------------------------------------------------------------------
  void KeepPrefixOnceFull(Sequence* sequence);
  void KeepForBranches(Sequence* prompt);
  void ForkKept(const Sequence& parent, Sequence* sequence);
  void LetGoOfKept(Sequence* sequence);
  bool keeps_any() const { return !keepers_.empty(); }
  bool LetGoOfSomeKept();

 private:
  Sequence* HeldWithPages() const;
  void Preempt(Sequence* sequence);
  bool SetAsideFor(Sequence* next);
  Sequence* YoungestOf(const CallerShare& caller, int32_t priority) const;
  void SetAside(Sequence* sequence);
  void GiveBack(Sequence* sequence);
  void SendBack(Sequence* sequence);
  void KeepPrefix(Sequence* sequence);

  KvStore& store_;
  Admission& admission_;
  PartWay& prompts_;
  std::vector<Sequence*>& decode_;
  const bool has_window_;           // some layer group has one
  std::vector<Sequence*> keepers_;  // those with Sequence::kept, wherever they are, oldest first
  // Each sits the current plan out: to be preempted, and to be set aside, later.
  const Sequence* victim_in_flight_ = nullptr;
  const Sequence* set_aside_later_ = nullptr;
  int64_t preemptions_ = 0;
  int64_t set_aside_ = 0;
};

}  // namespace tramontane
