#include "models/chat/chat_render.h"

#include <cstddef>
#include <string>
#include <string_view>

#include "models/tokenizer/python_json.h"

namespace tramontane {
namespace {

constexpr char kBetweenSystemAndUser[] = "\n\n";

Status EndAnswer(const ChatTurn& turn, ChatPrompt* prompt) {
  return turn.prefix ? Status::Ok() : prompt->EndAnswer();  // the model is to go on with a prefix
}

// What stands in front of the first or the last user turn.
Status RenderToolsAndSettings(const NormalizedChat& chat, ChatPrompt* prompt) {
  if (!chat.tools.empty()) {
    TM_RETURN_IF_ERROR(prompt->Block("[AVAILABLE_TOOLS]", "tools", chat.tools, "[/AVAILABLE_TOOLS]"));
  }
  if (chat.settings.empty()) return Status::Ok();
  return prompt->Block("[MODEL_SETTINGS]", "settings", chat.settings, "[/MODEL_SETTINGS]");
}

Status RenderUser(const MistralFormat& format, const NormalizedChat& chat, size_t index, ChatPrompt* prompt) {
  const ChatTurn& turn = chat.turns[index];
  const bool is_last = index == chat.last_user;
  const bool has_tools =
      format.tools_at == MistralFormat::ToolsAt::kFirstUser ? index == chat.first_user : is_last;
  if (has_tools) TM_RETURN_IF_ERROR(RenderToolsAndSettings(chat, prompt));
  const bool has_system = is_last && !chat.system_prompt.empty();
  const std::string text =
      has_system ? chat.system_prompt + kBetweenSystemAndUser + turn.Text() : turn.Text();
  return prompt->Block("[INST]", turn.label, text, "[/INST]");
}

// From v2 on. Spaces at the end go, but not where there is thinking.
Status RenderAnswer(const ChatTurn& turn, ChatPrompt* prompt) {
  if (turn.HasThinking()) return prompt->Parts(turn.label, turn.content);
  std::string text = turn.Text();
  while (text.ends_with(' ')) text.pop_back();
  return prompt->Text(turn.label, text);
}

enum class CallIds { kShown, kLeftOut };

Status RenderCallJson(const ChatTurn& turn, CallIds call_ids, ChatPrompt* prompt) {
  std::string json;
  for (const TurnCall& call : turn.calls) {
    json += json.empty() ? "[{\"name\": " : ", {\"name\": ";
    AppendPythonJsonString(call.name, &json);
    json += ", \"arguments\": " + call.arguments;
    if (call_ids == CallIds::kShown) {
      json += ", \"id\": ";
      AppendPythonJsonString(call.id, &json);
    }
    json += "}";
  }
  json += "]";
  TM_RETURN_IF_ERROR(prompt->Control("[TOOL_CALLS]"));
  return prompt->Text(turn.label + ".tool_calls", json);
}

Status RenderCallsOneByOne(const ChatTurn& turn, CallIds call_ids, ChatPrompt* prompt) {
  const std::string label = turn.label + ".tool_calls";
  for (const TurnCall& call : turn.calls) {
    TM_RETURN_IF_ERROR(prompt->Control("[TOOL_CALLS]"));
    TM_RETURN_IF_ERROR(prompt->Text(label, call.name));
    if (call_ids == CallIds::kShown) {
      TM_RETURN_IF_ERROR(prompt->Control("[CALL_ID]"));
      TM_RETURN_IF_ERROR(prompt->Text(label, call.id));
    }
    TM_RETURN_IF_ERROR(prompt->Control("[ARGS]"));
    TM_RETURN_IF_ERROR(prompt->Text(label, call.arguments));
  }
  return Status::Ok();
}

Status RenderV2Assistant(const ChatTurn& turn, ChatPrompt* prompt) {
  TM_RETURN_IF_ERROR(RenderAnswer(turn, prompt));
  if (!turn.calls.empty()) TM_RETURN_IF_ERROR(RenderCallJson(turn, CallIds::kLeftOut, prompt));
  return EndAnswer(turn, prompt);
}

Status RenderV2Result(const ChatTurn& turn, ChatPrompt* prompt) {
  std::string json = "[{\"name\": ";
  if (turn.name) {
    AppendPythonJsonString(*turn.name, &json);
  } else {
    json += "null";
  }
  json += ", \"content\": " + turn.Text() + "}]";
  return prompt->Block("[TOOL_RESULTS]", turn.label, json, "[/TOOL_RESULTS]");
}

}  // namespace

Status RenderV1(const MistralFormat& /*format*/, const NormalizedChat& chat, ChatPrompt* prompt) {
  for (size_t i = 0; i < chat.turns.size(); ++i) {
    const ChatTurn& turn = chat.turns[i];
    if (turn.role == ChatRole::kTool || !turn.calls.empty()) {
      return ChatFault(turn.label, "chat format v1 has no tools");
    }
    if (turn.role == ChatRole::kUser) {
      const bool has_system = i == chat.first_user && !chat.system_prompt.empty();
      const std::string text =
          has_system ? chat.system_prompt + kBetweenSystemAndUser + turn.Text() : turn.Text();
      TM_RETURN_IF_ERROR(prompt->Text(turn.label, "[INST] " + text + " [/INST]"));
    } else {
      TM_RETURN_IF_ERROR(prompt->Text(turn.label, turn.Text()));
      TM_RETURN_IF_ERROR(EndAnswer(turn, prompt));
    }
  }
  return Status::Ok();
}

Status RenderV2(const MistralFormat& format, const NormalizedChat& chat, ChatPrompt* prompt) {
  bool follows_calls = false;
  int results = 0;
  for (size_t i = 0; i < chat.turns.size(); ++i) {
    const ChatTurn& turn = chat.turns[i];
    const bool is_past = i < chat.last_user;
    switch (turn.role) {
      case ChatRole::kAssistant:
        follows_calls = !turn.calls.empty();
        results = 0;
        if (is_past && !turn.calls.empty()) break;
        TM_RETURN_IF_ERROR(RenderV2Assistant(turn, prompt));
        break;
      case ChatRole::kTool:
        if (is_past) break;
        if (follows_calls && ++results > 1) {
          return ChatFault(turn.label, "chat format v2 holds one tool result for an assistant message");
        }
        TM_RETURN_IF_ERROR(RenderV2Result(turn, prompt));
        break;
      case ChatRole::kSystem:  // became the system prompt
      case ChatRole::kUser:
        follows_calls = false;
        TM_RETURN_IF_ERROR(RenderUser(format, chat, i, prompt));
        break;
    }
  }
  return Status::Ok();
}

Status RenderTurns(const MistralFormat& format, const NormalizedChat& chat, ChatPrompt* prompt) {
  for (size_t i = 0; i < chat.turns.size(); ++i) {
    const ChatTurn& turn = chat.turns[i];
    switch (turn.role) {
      case ChatRole::kAssistant:
        TM_RETURN_IF_ERROR(RenderAnswer(turn, prompt));
        if (!turn.calls.empty()) TM_RETURN_IF_ERROR(format.render_calls(turn, prompt));
        TM_RETURN_IF_ERROR(EndAnswer(turn, prompt));
        break;
      case ChatRole::kTool:
        TM_RETURN_IF_ERROR(format.render_result(turn, prompt));
        break;
      case ChatRole::kSystem:  // before v7 it became the system prompt
        TM_RETURN_IF_ERROR(prompt->Control("[SYSTEM_PROMPT]"));
        TM_RETURN_IF_ERROR(prompt->Parts(turn.label, turn.content));
        TM_RETURN_IF_ERROR(prompt->Control("[/SYSTEM_PROMPT]"));
        break;
      case ChatRole::kUser:
        TM_RETURN_IF_ERROR(RenderUser(format, chat, i, prompt));
        break;
    }
  }
  return Status::Ok();
}

Status RenderCallList(const ChatTurn& turn, ChatPrompt* prompt) {
  return RenderCallJson(turn, CallIds::kShown, prompt);
}

Status RenderCallsWithIds(const ChatTurn& turn, ChatPrompt* prompt) {
  return RenderCallsOneByOne(turn, CallIds::kShown, prompt);
}

Status RenderCalls(const ChatTurn& turn, ChatPrompt* prompt) {
  return RenderCallsOneByOne(turn, CallIds::kLeftOut, prompt);
}

Status RenderJsonResult(const ChatTurn& turn, ChatPrompt* prompt) {
  std::string json = "{\"content\": " + turn.Text() + ", \"call_id\": ";
  AppendPythonJsonString(turn.call_id, &json);
  json += "}";
  return prompt->Block("[TOOL_RESULTS]", turn.label, json, "[/TOOL_RESULTS]");
}

Status RenderResultWithId(const ChatTurn& turn, ChatPrompt* prompt) {
  TM_RETURN_IF_ERROR(prompt->Block("[TOOL_RESULTS]", turn.label, turn.call_id, "[TOOL_CONTENT]"));
  TM_RETURN_IF_ERROR(prompt->Text(turn.label, turn.Text()));
  return prompt->Control("[/TOOL_RESULTS]");
}

Status RenderResult(const ChatTurn& turn, ChatPrompt* prompt) {
  return prompt->Block("[TOOL_RESULTS]", turn.label, turn.Text(), "[/TOOL_RESULTS]");
}

}  // namespace tramontane
