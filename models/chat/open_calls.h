// Calls without a result. A user denies a call, or an agent ends before its tools do, and the history of
// every later turn has a gap. The model is shown a result that says so in its place.
//
// Any thread. Pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "models/chat/chat.h"

namespace tramontane {

// A chat in which every call has a result.
struct AnsweredChat {
  std::vector<ChatMessage> messages;
  std::vector<size_t>
      index;  // [messages] of each in the request; of a result made here: of the message before
};

// `messages` with `{"error": "no result"}` for each call without a result, behind the last result of the
// call's message, in the order of the calls. A result belongs to the call of its id, else to the first call
// that is left. Nothing: no call lacks one. Calls of the first message do not count, as in mistral-common;
// those of the last message stay open, since nothing has come of them yet.
std::optional<AnsweredChat> AnswerOpenCalls(std::span<const ChatMessage> messages);

}  // namespace tramontane
