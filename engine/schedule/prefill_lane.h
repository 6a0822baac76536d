// PrefillLane: plans a prefill step. Shares the step out among the prompts that are part-way and those that
// may start, by the sharing rule of engine/schedule/README.md.
//
// Engine thread only; the scheduler's. A grant is a value until Commit, which alone takes pages and writes
// rows.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/schedule/lead.h"
#include "engine/schedule/preemption.h"
#include "engine/schedule/step_plan.h"

namespace tramontane {

class PrefillLane {
 public:
  // All are borrowed.
  PrefillLane(const EngineLimits& limits, KvStore& store, const PrefillShare& share, Admission& admission,
              PartWay& prompts, std::vector<Sequence*>& decode, Preemption& preemption);

  // Rows, or none. Prompts of which nothing is left to plan go over to decode.
  void Plan(StepPlan* plan, int64_t now_ns);

  // Prompt tokens of sequences that have started, and how many of them needed no computing.
  int64_t prefix_queries() const { return prefix_queries_; }
  int64_t prefix_hits() const { return prefix_hits_; }

 private:
  // What a prompt gets of a step: the positions behind `start` that the budget is for.
  struct Grant {
    Sequence* sequence = nullptr;
    int64_t start = 0;
    PrefillBudget takes;
  };

  // ---- who gets how much ------------------------------------------------------------------------
  void GiveOldest();
  Sequence* OldestPrompt(const PrefillBudget& share) const;
  void GiveOthers();
  void GiveShortPrompts();
  void GiveShortestRemaining();
  bool IsAhead(const Sequence& sequence) const { return lead_ && lead_->IsAhead(sequence); }
  enum class Least { kNothing, kOneToken };  // whatever it costs
  bool Give(Sequence* sequence, PrefillBudget share, Least least = Least::kNothing);
  int64_t LongestChunk(const Sequence& sequence, const PrefillBudget& share) const;
  void Commit(const Grant& grant, StepRow* row);
  StepRow* FindRow(const Sequence* sequence) const;
  void FinishRows(int64_t now_ns);

  // ---- who may start ----------------------------------------------------------------------------
  bool MayStart(const Sequence& sequence, const PrefillBudget& share) const;
  bool HasTurn(const Sequence& sequence) const;
  bool HasPagesToStart(const Sequence& sequence) const;
  int64_t PagesToStart(const Sequence& sequence) const;
  void LetGoOfWhatIsInTheWay(Sequence* first);

  const EngineLimits& limits_;
  KvStore& store_;
  const PrefillShare& share_;
  Admission& admission_;
  PartWay& prompts_;
  std::vector<Sequence*>& decode_;
  Preemption& preemption_;

  StepPlan* plan_ = nullptr;         // that is being made
  PrefillBudget left_;               // of it
  std::optional<Lead> lead_;         // while prompts that are ahead of other callers' get nothing
  std::vector<Sequence*> shortest_;  // scratch of GiveShortestRemaining
  int64_t prefix_queries_ = 0;
  int64_t prefix_hits_ = 0;
};

}  // namespace tramontane
