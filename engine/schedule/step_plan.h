// StepPlan: what one step computes. A printable value; made by Scheduler::Plan, read by the ModelRunner,
// handed back to Scheduler::Apply. Engine thread only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/request/sequence.h"

namespace tramontane {

enum class Lane : int32_t { kIdle = 0, kPrefill = 1, kDecode = 2 };
inline const char* LaneName(Lane lane) {
  constexpr const char* kNames[] = {"idle", "prefill", "decode"};
  return kNames[static_cast<size_t>(lane)];
}

// What a row wants back, beside nothing: a chunk that is not the last wants none of it.
struct RowAsk {
  int32_t samples = 0;  // drawn at its last position: n at a prompt's last chunk, 1 in decode, 0 for none
  // Of the sequence's scores [score_begin, score_end), all of positions of this row. Where the prompt is
  // scored score p is the logprob of the token behind position p.
  int64_t score_begin = 0;
  int64_t score_end = 0;

  bool scores() const { return score_begin < score_end; }
  int64_t results() const { return samples + score_end - score_begin; }
};

struct StepRow {
  Sequence* sequence = nullptr;
  int64_t start = 0;  // first position computed
  int32_t count = 0;  // positions computed
  RowAsk ask;
};

// Position after the row's last one. (With steps in flight a page table may already reach further.)
inline int64_t EndOf(const StepRow& row) { return row.start + row.count; }

// Whether the row sees other positions than its layers' windows say.
bool SeesSinks(const StepRow& row);
// Whether attention needs a mask for what the row sees: candidates.
bool IsMasked(const StepRow& row);
// Neither: its layers' windows decide.
inline bool IsPlain(const StepRow& row) { return !SeesSinks(row) && !IsMasked(row); }

struct StepPlan {
  int64_t step = 0;  // 1, 2, 3, ...; 0 when idle
  Lane lane = Lane::kIdle;
  std::vector<StepRow> rows;     // plain ones before others: a device may attend them apart (AttentionPlain)
  std::vector<PageCopy> copies;  // before anything else of the step
  int64_t tokens = 0;            // sum of counts
  int64_t cost = 0;              // token equivalents (EngineLimits::attended_keys_per_token)
  int64_t attended_keys = 0;     // of all tokens, added up over the layers

  // "step 7 prefill cost 97: r1.0[0,64) r2.0[0,32)*": request id, choice, positions. * samples, *3 samples
  // three choices, ?[0,31) scores what follows those positions; "copies 2" after the cost when pages are
  // copied.
  std::string ToString() const;
};

}  // namespace tramontane
