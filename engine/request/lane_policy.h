// LanePolicy: which lane a step takes where both could. Any thread; a plain value.
// engine/schedule/README.md states what each of them bounds, and what it does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tramontane {

enum class LanePolicy : int32_t {
  kFair = 0,          // after max_prefill_steps prefill steps comes a decode step
  kPrefillFirst = 1,  // decode waits while a prompt can go on
  kDecodeFirst = 2,   // prompts wait while something can decode
};

inline const char* LanePolicyName(LanePolicy policy) {
  constexpr const char* kNames[] = {"fair", "prefill-first", "decode-first"};
  return kNames[static_cast<size_t>(policy)];
}
inline std::optional<LanePolicy> ParseLanePolicy(std::string_view name) {
  for (const auto policy : {LanePolicy::kFair, LanePolicy::kPrefillFirst, LanePolicy::kDecodeFirst}) {
    if (name == LanePolicyName(policy)) return policy;
  }
  return std::nullopt;
}

}  // namespace tramontane
