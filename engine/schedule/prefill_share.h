// PrefillShare: what a prefill step may compute, and how much of it a prompt can use. Values in, values out:
// nothing is leased or planned here. engine/schedule/README.md has the formulas. Engine thread only; the
// scheduler's.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv/kv_store.h"
#include "engine/request/limits.h"
#include "engine/request/sequence.h"
#include "engine/schedule/costs.h"

namespace tramontane {

// Of a step, of a part of it, or what a chunk takes.
struct PrefillBudget {
  int64_t tokens = 0;
  int64_t parts = 0;   // of PrefillCost
  double ns = 0;       // predicted; infinite where nothing decodes
  int64_t scores = 0;  // asked for; not shared out

  PrefillBudget Half() const { return {tokens - tokens / 2, parts - parts / 2, ns / 2, scores}; }
  void Take(const PrefillBudget& chunk) {
    *this = {tokens - chunk.tokens, parts - chunk.parts, ns - chunk.ns, scores - chunk.scores};
  }
  bool Holds(const PrefillBudget& chunk) const {
    return chunk.tokens <= tokens && chunk.parts <= parts && chunk.ns <= ns && chunk.scores <= scores;
  }
};

class PrefillShare {
 public:
  // All are borrowed; `costs` may learn.
  PrefillShare(const EngineLimits& limits, const KvStore& store, const StepCosts& costs);

  PrefillBudget OfStep(const std::vector<Sequence*>& prompts, const std::vector<Sequence*>& decode) const;
  // What positions [begin, end) of the sequence take.
  PrefillBudget ChunkOf(const Sequence& sequence, int64_t begin, int64_t end) const;
  // Tokens of the longest next chunk within the share and so many pages: where pages are short the chunk
  // shrinks.
  int64_t LongestChunk(const Sequence& sequence, const PrefillBudget& share, int64_t pages) const;
  // Of all that the sequence has left to prefill.
  int64_t RemainingParts(const Sequence& sequence) const;
  int64_t AttendedKeys(const Sequence& sequence, int64_t begin, int64_t end) const;
  // Its prefill fits the half of a step that the oldest prompt leaves.
  bool FitsOneChunk(const Sequence& sequence) const;
  int64_t TokenEquivalents(int64_t parts) const { return cost_.TokenEquivalents(parts); }

 private:
  double DecodeStepNs(const std::vector<Sequence*>& decode) const;
  double LeastStepNs(const std::vector<Sequence*>& prompts) const;
  double ChunkNs(int64_t tokens, int64_t keys) const;

  const EngineLimits& limits_;
  const KvStore& store_;
  const StepCosts& costs_;
  const PrefillCost cost_;
};

}  // namespace tramontane
