// A checked chat as its format renders it: neighbours of one role are one turn, JSON has its one spelling.
//
// Any thread. Plain values and one pure function.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "models/chat/chat.h"
#include "models/chat/chat_check.h"
#include "models/chat/mistral_format.h"

namespace tramontane {

struct TurnCall {
  std::string name;
  std::string arguments;  // JSON
  std::string id;
};

struct ChatTurn {
  ChatRole role = ChatRole::kUser;
  // Texts that are not empty, no two in a row, and thinking. Of a tool's result before v7: one text, JSON.
  std::vector<ContentPart> content;
  std::vector<TurnCall> calls;
  std::string call_id;
  std::optional<std::string> name;
  bool prefix = false;
  std::string label;  // of the message it came from (the last one, if several), for errors

  bool HasThinking() const;
  std::string Text() const;  // REQUIRES: no thinking
};

struct NormalizedChat {
  std::vector<ChatTurn> turns;
  std::string system_prompt;  // "" where the format has system turns
  std::string tools;          // JSON; "" for none
  std::string settings;       // JSON; "" for none
  size_t first_user = 0;      // index of a turn; turns.size() if no user spoke
  size_t last_user = 0;
};

// REQUIRES: CheckMessages(format, said).
StatusOr<NormalizedChat> NormalizeChat(const MistralFormat& format, std::span<const SaidMessage> said,
                                       std::span<const ToolDefinition> tools);

}  // namespace tramontane
