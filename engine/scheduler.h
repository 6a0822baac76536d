// Scheduler: decides what each step computes. A pure function of the sequences, the limits, the free pages
// and the times it is given: no clock, no device, no stream. Engine thread only. Borrows the sequences; owns
// their pages through the KvCache.
//
// Two lanes: a step is one ragged batch of prefill chunks or one batch of decode tokens, never both.
// engine/README.md states the sharing rule, the lane policy and the bounds that follow, as formulas.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/limits.h"
#include "engine/sequence.h"
#include "engine/step_plan.h"

namespace tramontane {

// What became of one row's samples, in the order of the plan's rows.
struct RowOutcome {
  int32_t accepted = 0;  // positions whose keys stay: the row's count, or less (speculation)
};

class Scheduler {
 public:
  Scheduler(const EngineLimits& limits, const KvLayout& layout);

  // Puts a sequence at the end of the queue (or, preempted before, at its place by age).
  void Admit(Sequence* sequence);

  // The next step; kIdle when nothing can run. Advances scheduled_len, takes pages, may preempt: a preempted
  // sequence (never one in flight, never the oldest) gives its pages back and waits again by age.
  // May be called again before the last plan is applied, up to EngineLimits::steps_in_flight.
  StepPlan Plan(int64_t now_ns);

  // Ends a plan. Advances accepted_len and rolls windows. The engine has appended sampled tokens to
  // Sequence::tokens first, and marked sequences that are done with Finish.
  void Apply(const StepPlan& plan, const std::vector<RowOutcome>& outcomes, int64_t now_ns);

  // `sequence` starts in decode, sharing every page of `parent` (the choices of one prompt).
  // REQUIRES: `parent` has just sampled the prompt's first token; a slot was reserved at admission.
  void Fork(const Sequence& parent, Sequence* sequence);

  // No more steps for this sequence, in whatever state it is. Its pages go back at once, or when the last
  // step in flight that mentions it is applied.
  void Finish(Sequence* sequence);

  const KvCache& cache() const { return cache_; }
  int64_t waiting() const;  // sequences in the queue
  int64_t running() const;  // in prefill or decode

 private:
  EngineLimits limits_;
  KvCache cache_;
};

}  // namespace tramontane
