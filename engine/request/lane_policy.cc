#include "engine/request/lane_policy.h"

namespace tramontane {

const char* LanePolicyName(LanePolicy policy) {
  switch (policy) {
    case LanePolicy::kFair:
      return "fair";
    case LanePolicy::kPrefillFirst:
      return "prefill-first";
    case LanePolicy::kDecodeFirst:
      return "decode-first";
  }
  return "unknown";
}

std::optional<LanePolicy> ParseLanePolicy(std::string_view name) {
  for (const auto policy : {LanePolicy::kFair, LanePolicy::kPrefillFirst, LanePolicy::kDecodeFirst}) {
    if (name == LanePolicyName(policy)) return policy;
  }
  return std::nullopt;
}

}  // namespace tramontane
