// StepPlan: what one step computes. A value; made by Scheduler::Plan, read by the ModelRunner,
// handed back to Scheduler::Apply. Engine thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/request/sequence.h"

namespace tramontane {

enum class Lane : int32_t { kIdle = 0, kPrefill = 1, kDecode = 2 };
inline const char* LaneName(Lane lane) {
  constexpr const char* kNames[] = {"idle", "prefill", "decode"};
  return kNames[static_cast<size_t>(lane)];
}

// What a row wants to know of one of its positions. (Tokens to verify, and hidden states, are further kinds.)
struct Want {
  enum class Kind : int32_t {
    kDraw,   // the token behind it is drawn, for choice `id`
    kScore,  // the token behind it is `id`: how likely was that?
  };
  int64_t position = 0;
  Kind kind = Kind::kDraw;
  int32_t id = 0;
};

struct StepRow {
  Sequence* sequence = nullptr;
  int64_t start = 0;                      // first position computed
  int32_t count = 0;                      // positions computed
  uint32_t want_begin = 0, want_end = 0;  // StepPlan::wants; none: a chunk that is not the last
};

// Position after the row's last one. (With steps in flight a page table may already reach further.)
inline int64_t EndOf(const StepRow& row) { return row.start + row.count; }

// Whether the row sees other positions than its layers' windows say.
inline bool SeesSinks(const StepRow& row) { return EndOf(row) > row.sequence->lease().plain_len; }
inline bool IsPlain(const StepRow& row) { return !SeesSinks(row); }

struct StepPlan {
  int64_t step = 0;  // 1, 2, 3, ...; 0 when idle
  Lane lane = Lane::kIdle;
  std::vector<StepRow> rows;     // plain ones before others: a device may attend them apart (AttentionPlain)
  std::vector<Want> wants;       // of the rows, in their order; a row's draws are one behind the other
  std::vector<PageCopy> copies;  // before anything else of the step
  int64_t tokens = 0;            // sum of counts
  int64_t cost = 0;              // token equivalents (EngineLimits::attended_keys_per_token)
  int64_t attended_keys = 0;     // of all tokens, added up over the layers

  std::span<const Want> WantsOf(const StepRow& row) const {
    return std::span(wants).subspan(row.want_begin, row.want_end - row.want_begin);
  }
  int64_t Draws(const StepRow& row) const {  // how many of its wants are some
    return std::ranges::count(WantsOf(row), Want::Kind::kDraw, &Want::kind);
  }
};

}  // namespace tramontane
