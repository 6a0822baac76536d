// Parsing the JSON files of a model folder: bounded, strict, and without exceptions.
// Any thread; pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kernels/core/status.h"

namespace tramontane {

inline constexpr int64_t kMaxConfigBytes = 1 << 20;
inline constexpr int kMaxJsonFileDepth = 32;

// One JSON object. Refused, naming `file`: text that is not valid JSON in UTF-8, a value that is not an
// object, nesting beyond kMaxJsonFileDepth, a key that stands twice in one object (readers disagree about
// which of the two counts).
StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& file);

// A value as it may stand in a message: JSON, shortened.
std::string JsonText(const nlohmann::json& value);

}  // namespace tramontane
