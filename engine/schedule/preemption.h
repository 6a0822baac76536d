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

  void BeginPlan() { victim_in_flight_ = nullptr; }
  bool SitsOut(const Sequence& sequence) const { return sequence.held() || victim_in_flight_ == &sequence; }
  // Lets go of what is kept; else preempts a held sequence with pages, or else the youngest one,
  // if it is younger than this one. False when there is none, or when it is in flight: then it sits this plan
  // out, and is preempted once its steps are applied.
  bool MakeRoomFor(const Sequence& sequence);
  // As Scheduler::Reevaluate.
  void Reevaluate(Sequence* sequence, int64_t arrival);
  void LeaveLane(Sequence* sequence);
  int64_t preemptions() const { return preemptions_; }

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
  void SendBack(Sequence* sequence);
  void KeepPrefix(Sequence* sequence);

  KvStore& store_;
  Admission& admission_;
  PartWay& prompts_;
  std::vector<Sequence*>& decode_;
  const bool has_window_;                       // some layer group has one
  std::vector<Sequence*> keepers_;              // those with Sequence::kept, wherever they are, oldest first
  const Sequence* victim_in_flight_ = nullptr;  // sits the current plan out, to be preempted later
  int64_t preemptions_ = 0;
};

}  // namespace tramontane
