// How the formats of chat_format.h put turns together. Pure functions; any thread.
#pragma once

#include "kernels/core/status.h"
#include "models/chat/chat_prompt.h"
#include "models/chat/chat_turns.h"
#include "models/chat/mistral_format.h"

namespace tramontane {

// "[INST] user [/INST]" answer </s> ...; the system prompt is in the first user turn. No tools.
Status RenderV1(const MistralFormat& format, const NormalizedChat& chat, ChatPrompt* prompt);
// Tool traffic only after the last user turn, and one result an answer.
Status RenderV2(const MistralFormat& format, const NormalizedChat& chat, ChatPrompt* prompt);
// From v3 on: all turns, calls and results as the format's row says.
Status RenderTurns(const MistralFormat& format, const NormalizedChat& chat, ChatPrompt* prompt);

// [TOOL_CALLS] a JSON list of {"name", "arguments", "id"}
Status RenderCallList(const ChatTurn& turn, ChatPrompt* prompt);
// Of each: [TOOL_CALLS] name [CALL_ID] id [ARGS] arguments
Status RenderCallsWithIds(const ChatTurn& turn, ChatPrompt* prompt);
// Of each: [TOOL_CALLS] name [ARGS] arguments
Status RenderCalls(const ChatTurn& turn, ChatPrompt* prompt);

// [TOOL_RESULTS] {"content", "call_id"} [/TOOL_RESULTS]
Status RenderJsonResult(const ChatTurn& turn, ChatPrompt* prompt);
// [TOOL_RESULTS] id [TOOL_CONTENT] content [/TOOL_RESULTS]
Status RenderResultWithId(const ChatTurn& turn, ChatPrompt* prompt);
// [TOOL_RESULTS] content [/TOOL_RESULTS]
Status RenderResult(const ChatTurn& turn, ChatPrompt* prompt);

}  // namespace tramontane
