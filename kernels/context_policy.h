// What a row sees of a context that never ends, from its position alone. Any thread; plain values.
//
//   sinks        the first n_keep and the newest n_ctx - n_keep tokens, at true positions (StreamingLLM)
//   shift        when n_ctx tokens are held, the n_discard oldest after the first n_keep go and the rest move
//                up: cache positions 0, 1, 2, .. without a gap. No key is turned for it: with D tokens
//                discarded, window keys are met by the query at its true position, sink keys by the query
//                turned back to position - D
//   reevaluate   the same discard, and the survivors are evaluated again at their new positions
//
//   shift, n_ctx 8, n_keep 2, n_discard 3, the row at 9 (D = 3):
//     tokens            0 1 | 2 3 4 | 5 6 7 8 9
//     cache positions   0 1           2 3 4 5 6       left = 5, sink_query_position = 6
//
// A row's view follows from its position, so a chunk may cross discards and chunking changes nothing; under
// `reevaluate` no chunk does: what a discard leaves is computed anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/core/status.h"

namespace tramontane {

enum class ContextPolicyType : int32_t { kNone = 0, kSinks = 1, kShift = 2, kReevaluate = 3 };
inline constexpr size_t kContextPolicyTypes = 4;
const char* ContextPolicyName(ContextPolicyType type);  // "none", "sinks", "shift", "reevaluate"

struct ContextPolicy {
  ContextPolicyType type = ContextPolicyType::kNone;
  int64_t n_ctx = 0;      // tokens that a row sees at most, itself included
  int64_t n_keep = 4;     // of these, first ones
  int64_t n_discard = 0;  // of one discard; of kShift and kReevaluate alone

  bool operator==(const ContextPolicy&) const = default;
};

// "none", "shift (n_ctx 16, n_keep 4, n_discard 1)"
std::string ContextPolicyText(const ContextPolicy& policy);

// INVALID_ARGUMENT names the field, its value and what is allowed: n_ctx below 1, n_keep outside 0..n_ctx -
// 1, n_discard outside 1..n_ctx - n_keep, or given with kSinks.
Status CheckContextPolicy(const ContextPolicy& policy);

// What the row at a true position sees.
struct ContextView {
  int64_t discarded = 0;            // D: tokens dropped before it
  int64_t sink_len = 0;             // it sees tokens [0, min(sink_len, position + 1))
  int64_t left = 0;                 // and [left, position], in true positions
  int64_t sink_query_position = 0;  // where it stands for sink keys: its position - D
};

ContextView ViewAt(const ContextPolicy& policy, int64_t position);

}  // namespace tramontane
