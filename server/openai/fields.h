// The fields of every request body: name, shape, default and meaning, one row each. Requests are checked
// against these tables and /openapi.json is printed from them. Fields of other servers have rows too
// (openai_foreign_fields.h); what is in no table is refused, unless the server is told to let it pass.
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/core/field_limits.h"
#include "server/openai/shape.h"

namespace tramontane {

inline constexpr int64_t kMaxPrompts = 256;             // of one completion; more: 400
inline constexpr int64_t kMaxRequestIdFieldBytes = 64;  // leaves room for the number of the prompt
inline constexpr int64_t kMaxModelNameBytes = 512;
inline constexpr int64_t kMaxToolsBytes = 4 << 20;  // of all tools, as JSON

Shape ChatCompletionShape(const FieldLimits& limits);  // POST /v1/chat/completions, and its /render
Shape CompletionShape(const FieldLimits& limits);      // POST /v1/completions, and its /render
Shape TokenizeShape();                                 // POST /tokenize
Shape DetokenizeShape();                               // POST /detokenize

// Of a chat; for other endpoints that take messages or function tools.
Shape MessagesShape();
Shape ToolsShape();

}  // namespace tramontane
