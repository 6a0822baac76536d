// What the bodies of chats and completions have in common, and their answers, which are both lists of
// `choices`: rows of their tables. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "server/api/shared/shape.h"
#include "server/call/field_limits.h"

namespace tramontane {

inline constexpr int64_t kMaxRequestIdFieldBytes = 64;  // leaves room for the number of the prompt
inline constexpr int64_t kMaxCacheSaltFieldBytes = 256;
inline constexpr int64_t kMaxSessionFieldBytes = 64;
inline constexpr double kMostTimeLimitMsField = 24 * 3600 * 1000;
inline constexpr double kMostPriorityField = 1000;  // and the least is as far below 0

// ---- requests -----------------------------------------------------------------------------------

// How to sample, when to stop, what to say of the tokens, what the text must be.
std::vector<Field> GenerationFields(const FieldLimits& limits);
Field PriorityRow();

// ---- answers ------------------------------------------------------------------------------------

// Of an answer with such choices; `object` is its name: "chat.completion".
std::vector<Field> ChoicesAnswerFields(const char* object, Shape choice);
Field StopReason();
Shape TokenIds();
Shape Logprob();
// A token and its log probability.
std::vector<Field> ScoredToken();
Shape PromptLogprobsShape();
// What /render makes of one prompt.
const Shape& RenderedShape();

}  // namespace tramontane
