// What a v15 tokenizer file says of the settings that its model reads in front of a chat
// ("model_settings_builder").
//
// Any thread. A plain value.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tramontane {

// How much a model may think, from least to most; no file allows others.
inline constexpr std::string_view kReasoningEfforts[] = {"none", "minimal", "low", "medium",
                                                         "high", "xhigh",   "max"};

struct ModelSettings {
  struct ReasoningEffort {
    std::vector<std::string> values;  // of kReasoningEfforts, distinct
    std::string default_value;        // one of `values`: of a chat that does not say
  };
  std::optional<ReasoningEffort> reasoning_effort;
  bool json_schema = false;  // the model is shown the schema that its answer must keep
};

}  // namespace tramontane
