// The fields of every request body: name, shape, default and meaning, one row each. Requests are checked
// against these tables and /openapi.json is printed from them. Fields that are not in them are accepted and
// ignored. Constant; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/gateway/openai_shape.h"

namespace tramontane {

inline constexpr int64_t kMaxPrompts = 256;             // of one completion; more: 400
inline constexpr int64_t kMaxRequestIdFieldBytes = 64;  // leaves room for the number of the prompt

const Shape& ChatCompletionShape();  // POST /v1/chat/completions, and its /render
const Shape& CompletionShape();      // POST /v1/completions, and its /render
const Shape& TokenizeShape();        // POST /tokenize
const Shape& DetokenizeShape();      // POST /detokenize

// A field that other servers have and whose value changes nothing here.
Field Ignored(std::string name);
// A field that other servers have; null and the `harmless` values are accepted, `why` is said of the rest.
Field Refused(std::string name, std::vector<Json> harmless, const std::string& why);

// Of a chat; for other endpoints that take messages or function tools.
Shape MessagesShape();
Shape ToolsShape();

}  // namespace tramontane
