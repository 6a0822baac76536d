#include "models/chat/chat.h"

#include "kernels/core/utf8.h"
#include "models/chat/chat_check.h"

namespace tramontane {

const char* ChatRoleName(ChatRole role) {
  switch (role) {
    case ChatRole::kSystem:
      return "system";
    case ChatRole::kUser:
      return "user";
    case ChatRole::kAssistant:
      return "assistant";
    case ChatRole::kTool:
      return "tool";
  }
  return "unknown";
}

StatusOr<ChatRole> ParseChatRole(std::string_view name) {
  for (const ChatRole role : {ChatRole::kSystem, ChatRole::kUser, ChatRole::kAssistant, ChatRole::kTool}) {
    if (name == ChatRoleName(role)) return role;
  }
  return InvalidArgument("role " + Quoted(ReplaceInvalidUtf8(name)) +
                         " is not one of system, user, assistant, tool");
}

}  // namespace tramontane
