// Scheduler: decides what each step computes. A pure function of the sequences, the limits, the free pages
// and the times it is given, those that steps took among them: no clock, no device, no stream. Engine thread
// only. Borrows the sequences; owns their pages through the KvStore, which knows the beginnings of many.
//
// Two lanes: a step is one ragged batch of prefill chunks or one batch of decode tokens, never both.
// engine/schedule/README.md states the sharing rule, the lane policy and the bounds that follow, as formulas.
//
//   Admit -> queue --slots, in order--> ready --a turn and pages, by age--> prefill -> decode -> Finish
//                                         ^-------------- preempted ----------'---------'
//
// Always: a sequence is in one of those four lists or in none (finished, not yet forked, or held and
// preempted); ready, prefill and decode together hold at most max_sequences slots; pages are held only in
// prefill and decode, and by finished sequences that a step in flight still mentions; and between a discard
// and what is computed after it, or for the branches of a prompt, as Sequence::kept(), which is let go
// wherever pages are short.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/schedule/prefill_lane.h"

namespace tramontane {

// What became of one row's samples, in the order of the plan's rows.
struct RowOutcome {
  // Positions whose keys stay: the row's count, or less (speculation). Of a sequence that has ended: its
  // count where it ended with this step and by its own tokens, else 0.
  int32_t accepted = 0;
};

class Scheduler {
 public:
  // REQUIRES: limits.Validate() is OK and limits.context is at most ContextThatFits. `costs`: what is known
  // of the steps' times beforehand. `tier`: as KvStore's.
  Scheduler(const EngineLimits& limits, const KvLayout& layout, const StepCosts& costs = {},
            KvTier* tier = nullptr);

  // Puts choice 0 of a request at the end of the queue, in order of arrival. Slots for all its choices are
  // reserved together. `arrival`: above all others'. REQUIRES: the caller's fields of the sequence are set,
  // request->choices <= max_sequences.
  void Admit(Sequence* sequence, int64_t arrival) { admission_.Add(sequence, arrival); }

  // The next step; kIdle (step 0, nothing to apply) when nothing can run. Advances scheduled_len, takes
  // pages, may preempt: a preempted sequence (never one in flight, never the oldest but where it is held)
  // gives its pages back and waits again by age. May be called again before the last plan is applied, up to
  // EngineLimits::steps_in_flight.
  StepPlan Plan(int64_t now_ns);

  // `sequence` starts in decode, sharing the prompt's pages with `parent` (the choices of one prompt).
  // REQUIRES: `parent` has just sampled the prompt's first tokens and that step is not yet applied;
  // `sequence` gets its own first token before the next plan. The parent may be finished already.
  void Fork(Sequence& parent, Sequence* sequence);

  // The prompt's pages are kept for its branches until EndBranches, or let go where pages are short.
  // REQUIRES: all of the prompt is computed and that step is not yet applied; Finish of the prompt comes
  // next.
  void KeepForBranches(Sequence& prompt);
  // `branch` waits for a slot of its own, by the age of the prompt that it goes on from.
  void Branch(Sequence& prompt, Sequence* branch);
  // Of a prompt without any it does nothing.
  void EndBranches(Sequence& prompt) {
    if (std::exchange(prompt.has_branches_, false)) preemption_.LetGoOfKept(&prompt);
  }

  // A sequence in decode is in no further plan until Resume: its next token cannot be chosen yet. It keeps
  // its pages while nobody needs them; where pages are short, held sequences are the first to be preempted,
  // whatever their age. Twice does no harm.
  void Hold(Sequence* sequence);
  // REQUIRES: it is held, and no plan in flight has a position of it that will not be accepted.
  void Resume(Sequence* sequence);

  // A discard (ContextPolicyType::kReevaluate): what is left of the tokens is computed again, at its new
  // positions, as if the sequence had just begun with them: behind the first n_keep, whose pages were kept
  // where there was room. It waits for its turn as a prompt that has arrived now, behind those that were
  // there before. `arrival`: above all others'. REQUIRES: it decodes, and nothing of it is in flight.
  void Reevaluate(Sequence* sequence, int64_t arrival) { preemption_.Reevaluate(sequence, arrival); }

  // What this sequence has computed cannot be trusted: no later one finds its pages. Finish comes next.
  void Forget(Sequence* sequence);

  // No more steps for this sequence, in whatever state it is. Its pages and slots go back at once, or when
  // the last step in flight that mentions it is applied.
  void Finish(Sequence* sequence);

  // Ends the oldest plan in flight. Advances accepted_len, gives full pages their names and rolls windows.
  // The engine has appended sampled tokens to Sequence::tokens first, forked the choices of a prompt, and
  // marked sequences that are done with Finish. Positions that are not accepted are planned again. REQUIRES
  // for those: nothing else in flight mentions the sequence.
  void Apply(const StepPlan& plan, const std::vector<RowOutcome>& outcomes);

  // A plan that was made took so long. Teaches StepCosts, which limits.decode_gap_ns is held by.
  void Learn(const StepPlan& plan, int64_t ns);

  const StepCosts& costs() const { return costs_; }
  const KvStore& store() const { return store_; }
  // For who puts cached pages there or reads them, between two calls of the above: what is available() stays.
  KvStore& cache() { return store_; }
  // Some that could start otherwise wait for pages from the tier.
  bool awaits_pages() const { return admission_.awaits_pages(); }
  // Others wait for nothing but the next plan.
  bool has_put_off() const { return admission_.has_put_off(); }
  int64_t waiting() const { return admission_.waiting(); }  // without pages
  int64_t running() const { return std::ssize(prompts_.all()) + std::ssize(decode_); }
  int32_t free_slots() const { return admission_.free_slots(); }
  const Callers& callers() const { return admission_.callers(); }
  int32_t steps_in_flight() const { return static_cast<int32_t>(planned_steps_ - applied_steps_); }
  int64_t preemptions() const { return preemption_.preemptions(); }
  int64_t set_aside() const { return preemption_.set_aside(); }
  // Prompt tokens of sequences that have started, and how many of them needed no computing.
  int64_t prefix_queries() const { return prefill_lane_.prefix_queries(); }
  int64_t prefix_hits() const { return prefill_lane_.prefix_hits(); }

 private:
  bool DecodeWaits() const;
  bool DecodeIsDue() const;
  bool AnyHeld() const;
  void PlanDecode(StepPlan* plan);
  static void AskFor(StepRow& row, std::vector<Want>* wants);
  void Release(Sequence* sequence);

  const EngineLimits limits_;
  KvStore store_;
  StepCosts costs_;
  const PrefillShare share_;
  PartWay prompts_;  // at most max_partial_prefills between plans
  Admission admission_;
  std::vector<Sequence*> decode_;  // every prefill position planned, oldest first
  Preemption preemption_;
  PrefillLane prefill_lane_;
  std::vector<Sequence*> rows_;  // scratch of PlanDecode

  int32_t prefill_run_ = 0;  // prefill steps since the last decode step, while decode waits
  int64_t planned_steps_ = 0;
  int64_t applied_steps_ = 0;
};

}  // namespace tramontane
