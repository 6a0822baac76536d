#include "models/tokenizer/chat.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "kernels/core/utf8.h"
#include "models/tokenizer/json_schema.h"
#include "models/tokenizer/python_json.h"

namespace tramontane {
namespace {

struct Chat;
class Prompt;

// A chat format: what it allows, and how its prompts are put together.
struct ChatFormat {
  TokenizerVersion version;
  bool nine_character_ids;    // tool calls and results carry ids of nine letters or digits
  bool content_beside_calls;  // an assistant message may have both, or neither
  bool system_turns;          // system messages keep their place; else one prompt, inside a user turn
  bool json_results;          // a tool's result is shown as the JSON it is, or as a JSON string
  Status (*render)(const Chat& chat, Prompt* prompt);
};

Status RenderV1(const Chat& chat, Prompt* prompt);
Status RenderV2(const Chat& chat, Prompt* prompt);
Status RenderV3(const Chat& chat, Prompt* prompt);
Status RenderV7(const Chat& chat, Prompt* prompt);

constexpr ChatFormat kFormats[] = {
    {.version = TokenizerVersion::kV1,
     .nine_character_ids = false,
     .content_beside_calls = false,
     .system_turns = false,
     .json_results = true,
     .render = RenderV1},
    {.version = TokenizerVersion::kV2,
     .nine_character_ids = false,
     .content_beside_calls = false,
     .system_turns = false,
     .json_results = true,
     .render = RenderV2},
    {.version = TokenizerVersion::kV3,
     .nine_character_ids = true,
     .content_beside_calls = false,
     .system_turns = false,
     .json_results = true,
     .render = RenderV3},
    {.version = TokenizerVersion::kV7,
     .nine_character_ids = true,
     .content_beside_calls = true,
     .system_turns = true,
     .json_results = false,
     .render = RenderV7},
};

// ---------------------------------------------------------------------------------------------------------------
// Checks, on the messages as they came.

std::string MessageLabel(size_t index) { return "messages[" + std::to_string(index) + "]"; }
std::string CallLabel(size_t message, size_t call) {
  return MessageLabel(message) + ".tool_calls[" + std::to_string(call) + "]";
}
std::string ToolLabel(size_t index) { return "tools[" + std::to_string(index) + "]"; }
std::string Quoted(std::string_view text) { return "'" + Excerpt(text) + "'"; }

bool IsLetterOrDigit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// mistral-common's patterns end in '$', which in Python also matches before a final newline.
std::string_view WithoutFinalNewline(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

Status CheckFunctionName(const std::string& label, std::string_view name) {
  const std::string_view body = WithoutFinalNewline(name);
  const bool letters_fit = std::all_of(body.begin(), body.end(),
                                       [](char c) { return IsLetterOrDigit(c) || c == '_' || c == '-'; });
  if (letters_fit && !body.empty() && body.size() <= 64) return Status::Ok();
  return InvalidArgument(label + ": function name " + Quoted(name) +
                         " is not 1 to 64 letters, digits, underscores and dashes");
}

Status CheckCallId(const std::string& label, std::string_view id) {
  const std::string_view body = WithoutFinalNewline(id);
  if (body.size() == 9 && std::all_of(body.begin(), body.end(), IsLetterOrDigit)) return Status::Ok();
  return InvalidArgument(label + ": tool call id " + Quoted(id) + " is not 9 letters and digits");
}

Status CheckUtf8(const std::string& label, std::string_view text) {
  const auto invalid = FirstInvalidUtf8(text);
  if (!invalid) return Status::Ok();
  return InvalidArgument(label + ": not UTF-8 at byte " + std::to_string(*invalid));
}

Status CheckMessageUtf8(const ChatMessage& message, size_t index) {
  const std::string label = MessageLabel(index);
  if (message.content) TM_RETURN_IF_ERROR(CheckUtf8(label + ".content", *message.content));
  if (message.tool_call_id) TM_RETURN_IF_ERROR(CheckUtf8(label + ".tool_call_id", *message.tool_call_id));
  if (message.name) TM_RETURN_IF_ERROR(CheckUtf8(label + ".name", *message.name));
  for (size_t call = 0; call < message.tool_calls.size(); ++call) {
    const ToolCall& tool_call = message.tool_calls[call];
    TM_RETURN_IF_ERROR(CheckUtf8(CallLabel(index, call) + ".id", tool_call.id));
    TM_RETURN_IF_ERROR(CheckUtf8(CallLabel(index, call) + ".name", tool_call.name));
    TM_RETURN_IF_ERROR(CheckUtf8(CallLabel(index, call) + ".arguments", tool_call.arguments_json));
  }
  return Status::Ok();
}

Status CheckOrder(std::span<const ChatMessage> messages) {
  if (messages.empty()) return InvalidArgument("messages: a conversation needs at least one message");
  const ChatMessage& last = messages.back();
  const std::string last_label = MessageLabel(messages.size() - 1);
  if (messages.size() == 1) {
    if (last.role != ChatRole::kUser && last.role != ChatRole::kSystem) {
      return InvalidArgument(last_label + ": a conversation starts with a user or system message, not " +
                             ChatRoleName(last.role));
    }
  } else if (last.role == ChatRole::kAssistant && !last.prefix) {
    return InvalidArgument(
        last_label + ": the last message is from the user or a tool, or an assistant's with prefix set");
  }
  for (size_t i = 1; i < messages.size(); ++i) {
    const ChatRole before = messages[i - 1].role;
    const ChatRole role = messages[i].role;
    const bool before_is_prompt = before == ChatRole::kSystem || before == ChatRole::kUser;
    const bool fits = before_is_prompt ? role != ChatRole::kTool : role != ChatRole::kSystem;
    if (!fits) {
      return InvalidArgument(MessageLabel(i) + ": a " + ChatRoleName(role) + " message cannot follow a " +
                             ChatRoleName(before) + " message");
    }
  }
  return Status::Ok();
}

// Every call has its result before the assistant speaks again. The first message's calls do not count: that
// is how mistral-common counts.
Status CheckResultCounts(std::span<const ChatMessage> messages) {
  ptrdiff_t open_calls = 0;
  const auto mismatch = [&](size_t index) {
    return InvalidArgument(MessageLabel(index) + ": not as many tool results as tool calls before " +
                           (index + 1 == messages.size() ? "the end" : "this message"));
  };
  for (size_t i = 1; i < messages.size(); ++i) {
    if (messages[i].role == ChatRole::kTool) {
      --open_calls;
    } else if (messages[i].role == ChatRole::kAssistant) {
      if (open_calls != 0) return mismatch(i);
      open_calls = static_cast<ptrdiff_t>(messages[i].tool_calls.size());
    }
  }
  return open_calls == 0 ? Status::Ok() : mismatch(messages.size() - 1);
}

Status CheckAssistant(const ChatFormat& format, const ChatMessage& message, size_t index, bool is_last) {
  const bool has_content = message.content && !message.content->empty();
  if (!format.content_beside_calls && has_content == !message.tool_calls.empty()) {
    return InvalidArgument(MessageLabel(index) + ": an assistant message has either content or tool calls, " +
                           (has_content ? "not both" : "this one has neither"));
  }
  for (size_t call = 0; call < message.tool_calls.size(); ++call) {
    const std::string label = CallLabel(index, call);
    if (format.nine_character_ids) TM_RETURN_IF_ERROR(CheckCallId(label, message.tool_calls[call].id));
    TM_RETURN_IF_ERROR(CheckFunctionName(label, message.tool_calls[call].name));
  }
  if (message.prefix && !is_last) {
    return InvalidArgument(MessageLabel(index) + ": only the last message may have prefix set");
  }
  return Status::Ok();
}

Status CheckTool(const ChatFormat& format, const ChatMessage& message, size_t index) {
  const std::string label = MessageLabel(index);
  if (message.name) TM_RETURN_IF_ERROR(CheckFunctionName(label, *message.name));
  if (!format.nine_character_ids) return Status::Ok();
  if (!message.tool_call_id) return InvalidArgument(label + ": a tool message needs a tool_call_id");
  return CheckCallId(label, *message.tool_call_id);
}

Status CheckContent(const ChatFormat& format, const ChatMessage& message, size_t index, bool is_last) {
  TM_RETURN_IF_ERROR(CheckMessageUtf8(message, index));
  if (message.role == ChatRole::kAssistant) return CheckAssistant(format, message, index, is_last);
  const std::string label = MessageLabel(index) + ": a " + ChatRoleName(message.role) + " message ";
  if (!message.content) return InvalidArgument(label + "needs content");
  if (!message.tool_calls.empty()) return InvalidArgument(label + "has no tool_calls");
  if (message.prefix) return InvalidArgument(label + "has no prefix");
  if (message.role == ChatRole::kTool) return CheckTool(format, message, index);
  if (message.tool_call_id) return InvalidArgument(label + "has no tool_call_id");
  return Status::Ok();
}

Status CheckMessages(const ChatFormat& format, std::span<const ChatMessage> messages) {
  TM_RETURN_IF_ERROR(CheckOrder(messages));
  for (size_t i = 0; i < messages.size(); ++i) {
    TM_RETURN_IF_ERROR(CheckContent(format, messages[i], i, i + 1 == messages.size()));
  }
  return CheckResultCounts(messages);
}

// ---------------------------------------------------------------------------------------------------------------
// Normalisation: neighbours of one role become one turn, JSON gets its one spelling.

struct Call {
  std::string name;
  std::string arguments;  // JSON
  std::string id;
};

struct Turn {
  ChatRole role = ChatRole::kUser;
  std::string content;  // of a tool result before v7: JSON
  std::vector<Call> calls;
  std::string call_id;
  std::optional<std::string> name;
  bool prefix = false;
  std::string label;  // of the message it came from (the last one, if several), for errors
};

struct Chat {
  std::vector<Turn> turns;
  std::string system_prompt;  // "" where the format has system turns
  std::string tools;          // JSON; "" for none
  size_t first_user = 0;      // index of a turn; turns.size() if no user spoke
  size_t last_user = 0;
};

// A JSON text as Python prints it; what is not JSON becomes a JSON string.
StatusOr<std::string> JsonOrString(const std::string& label, std::string_view text) {
  std::string json;
  StatusOr<JsonValue> value = ParsePythonJson(text.empty() ? "{}" : text);
  if (value.ok()) {
    AppendPythonJson(*value, &json);
  } else if (value.status().code() == StatusCode::kInvalidArgument) {
    AppendPythonJsonString(text, &json);
  } else {
    return InvalidArgument(label + ": " + value.status().message());
  }
  return json;
}

// Adds another paragraph, if it is not empty.
void AppendParagraph(std::string_view paragraph, std::string* text) {
  if (paragraph.empty()) return;
  if (!text->empty()) *text += "\n\n";
  *text += paragraph;
}

Status MergeInto(const ChatFormat& format, const ChatMessage& message, size_t index, Turn* turn) {
  turn->role = message.role;
  turn->label = MessageLabel(index);
  turn->prefix = message.prefix;
  if (message.role == ChatRole::kTool) {
    turn->name = message.name;
    turn->call_id = message.tool_call_id.value_or("");
    turn->content = *message.content;
    if (!format.json_results) return Status::Ok();
    TM_ASSIGN_OR_RETURN(turn->content, JsonOrString(turn->label + ".content", *message.content));
    return Status::Ok();
  }
  if (message.content) AppendParagraph(*message.content, &turn->content);
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const ToolCall& call = message.tool_calls[i];
    TM_ASSIGN_OR_RETURN(std::string arguments,
                        JsonOrString(CallLabel(index, i) + ".arguments", call.arguments_json));
    turn->calls.push_back({call.name, std::move(arguments), call.id});
  }
  return Status::Ok();
}

// The json.dumps of mistral-common's tool list; "" for none.
StatusOr<std::string> ToolsJson(std::span<const ToolDefinition> tools) {
  std::string json;
  for (size_t i = 0; i < tools.size(); ++i) {
    const ToolDefinition& tool = tools[i];
    const std::string label = ToolLabel(i);
    TM_RETURN_IF_ERROR(CheckFunctionName(label + ".name", tool.name));
    TM_RETURN_IF_ERROR(CheckUtf8(label + ".description", tool.description));
    TM_RETURN_IF_ERROR(CheckUtf8(label + ".parameters", tool.parameters_json));
    const std::string_view parameters_json = tool.parameters_json;
    const StatusOr<JsonValue> parameters = ParsePythonJson(parameters_json.empty() ? "{}" : parameters_json);
    if (!parameters.ok()) return InvalidArgument(label + ".parameters: " + parameters.status().message());
    if (parameters->kind != JsonValue::Kind::kObject) {
      return InvalidArgument(label + ".parameters: not a JSON object");
    }
    if (const Status status = CheckJsonSchema(*parameters); !status.ok()) {
      return InvalidArgument(label + ".parameters: not a JSON Schema: " + status.message());
    }
    json += json.empty() ? "[" : ", ";
    json += "{\"type\": \"function\", \"function\": {\"name\": ";
    AppendPythonJsonString(tool.name, &json);
    json += ", \"description\": ";
    AppendPythonJsonString(tool.description, &json);
    json += ", \"parameters\": ";
    AppendPythonJson(*parameters, &json);
    json += "}}";
  }
  if (!json.empty()) json += "]";
  return json;
}

StatusOr<Chat> Normalize(const ChatFormat& format, std::span<const ChatMessage> messages,
                         std::span<const ToolDefinition> tools) {
  Chat chat;
  TM_ASSIGN_OR_RETURN(chat.tools, ToolsJson(tools));
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const ChatRole role = message.role;
    if (role == ChatRole::kSystem && !format.system_turns) {
      AppendParagraph(*message.content, &chat.system_prompt);
      continue;
    }
    const bool joins_neighbours = role == ChatRole::kUser || role == ChatRole::kAssistant;
    if (i == 0 || !joins_neighbours || messages[i - 1].role != role) chat.turns.emplace_back();
    TM_RETURN_IF_ERROR(MergeInto(format, message, i, &chat.turns.back()));
  }
  if (!format.system_turns && (chat.turns.empty() || chat.turns.front().role != ChatRole::kUser)) {
    chat.turns.insert(chat.turns.begin(), Turn());
  }
  const auto is_user = [](const Turn& turn) { return turn.role == ChatRole::kUser; };
  const auto begin = chat.turns.begin();
  const auto first = std::find_if(begin, chat.turns.end(), is_user);
  chat.first_user = static_cast<size_t>(first - begin);
  chat.last_user = chat.first_user;
  for (size_t i = chat.first_user; i < chat.turns.size(); ++i) {
    if (is_user(chat.turns[i])) chat.last_user = i;
  }
  return chat;
}

// ---------------------------------------------------------------------------------------------------------------
// Rendering.

// The ids so far.
class Prompt {
 public:
  explicit Prompt(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  Status Control(std::string_view piece) {
    const std::optional<int32_t> id = tokenizer_.ControlId(piece);
    if (!id) return FailedPrecondition("the tokenizer has no control token " + std::string(piece));
    ids_.push_back(*id);
    return Status::Ok();
  }
  // A segment of its own. `label` is what an error names.
  Status Text(const std::string& label, std::string_view text) {
    StatusOr<std::vector<int32_t>> ids = tokenizer_.Encode(text);
    if (!ids.ok()) return InvalidArgument(label + ": " + ids.status().message());
    ids_.insert(ids_.end(), ids->begin(), ids->end());
    return Status::Ok();
  }
  // A segment between two control tokens.
  Status Block(std::string_view begin, const std::string& label, std::string_view text,
               std::string_view end) {
    TM_RETURN_IF_ERROR(Control(begin));
    TM_RETURN_IF_ERROR(Text(label, text));
    return Control(end);
  }
  Status Begin() { return Id(tokenizer_.bos_id(), "beginning"); }
  // Ends an assistant's turn, unless the model is to go on with it.
  Status EndAnswer(const Turn& turn) { return turn.prefix ? Status::Ok() : Id(tokenizer_.eos_id(), "end"); }

  RenderedChat Finish() {
    RenderedChat rendered;
    for (const int32_t id : ids_) rendered.text += tokenizer_.Piece(id);
    rendered.ids = std::move(ids_);
    return rendered;
  }

 private:
  Status Id(int32_t id, const char* what) {
    if (id < 0)
      return FailedPrecondition("the tokenizer has no token for the " + std::string(what) + " of a text");
    ids_.push_back(id);
    return Status::Ok();
  }

  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
};

// <s> "[INST] user [/INST]" answer </s> ...; the system prompt is in the first user turn.
Status RenderV1(const Chat& chat, Prompt* prompt) {
  for (size_t i = 0; i < chat.turns.size(); ++i) {
    const Turn& turn = chat.turns[i];
    if (turn.role == ChatRole::kTool || !turn.calls.empty()) {
      return InvalidArgument(turn.label + ": chat format v1 has no tools");
    }
    if (turn.role == ChatRole::kUser) {
      const bool has_system = i == chat.first_user && !chat.system_prompt.empty();
      const std::string content = has_system ? chat.system_prompt + "\n\n" + turn.content : turn.content;
      TM_RETURN_IF_ERROR(prompt->Text(turn.label, "[INST] " + content + " [/INST]"));
    } else {
      TM_RETURN_IF_ERROR(prompt->Text(turn.label, turn.content));
      TM_RETURN_IF_ERROR(prompt->EndAnswer(turn));
    }
  }
  return Status::Ok();
}

// From v2 on: [AVAILABLE_TOOLS] before the last user turn, [INST] user [/INST].
Status RenderUser(const Chat& chat, size_t index, Prompt* prompt) {
  const Turn& turn = chat.turns[index];
  const bool is_last = index == chat.last_user;
  if (is_last && !chat.tools.empty()) {
    TM_RETURN_IF_ERROR(prompt->Block("[AVAILABLE_TOOLS]", "tools", chat.tools, "[/AVAILABLE_TOOLS]"));
  }
  const bool has_system = is_last && !chat.system_prompt.empty();
  const std::string content = has_system ? chat.system_prompt + "\n\n" + turn.content : turn.content;
  return prompt->Block("[INST]", turn.label, content, "[/INST]");
}

enum class CallIds { kShown, kLeftOut };

// From v2 on: answer [TOOL_CALLS] calls </s>.
Status RenderAssistant(const Turn& turn, CallIds call_ids, Prompt* prompt) {
  std::string_view answer = turn.content;
  while (answer.ends_with(' ')) answer.remove_suffix(1);
  TM_RETURN_IF_ERROR(prompt->Text(turn.label, answer));
  if (!turn.calls.empty()) {
    std::string json;
    for (const Call& call : turn.calls) {
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
    TM_RETURN_IF_ERROR(prompt->Text(turn.label + ".tool_calls", json));
  }
  return prompt->EndAnswer(turn);
}

// Merging may have brought together what one message may not hold.
Status RefuseContentBesideCalls(const Turn& turn) {
  if (turn.content.empty() || turn.calls.empty()) return Status::Ok();
  return InvalidArgument(turn.label +
                         ": content and tool calls of assistant messages in a row do not go together");
}

// v2 shows tool traffic only after the last user turn, and one result an answer.
Status RenderV2(const Chat& chat, Prompt* prompt) {
  bool follows_calls = false;
  int results = 0;
  for (size_t i = 0; i < chat.turns.size(); ++i) {
    const Turn& turn = chat.turns[i];
    const bool is_past = i < chat.last_user;
    switch (turn.role) {
      case ChatRole::kAssistant:
        follows_calls = !turn.calls.empty();
        results = 0;
        TM_RETURN_IF_ERROR(RefuseContentBesideCalls(turn));
        if (is_past && !turn.calls.empty()) break;
        TM_RETURN_IF_ERROR(RenderAssistant(turn, CallIds::kLeftOut, prompt));
        break;
      case ChatRole::kTool: {
        if (is_past) break;
        if (follows_calls && ++results > 1) {
          return InvalidArgument(turn.label +
                                 ": chat format v2 holds one tool result for an assistant message");
        }
        std::string json = "[{\"name\": ";
        if (turn.name) {
          AppendPythonJsonString(*turn.name, &json);
        } else {
          json += "null";
        }
        json += ", \"content\": " + turn.content + "}]";
        TM_RETURN_IF_ERROR(prompt->Block("[TOOL_RESULTS]", turn.label, json, "[/TOOL_RESULTS]"));
        break;
      }
      case ChatRole::kSystem:  // became the system prompt
      case ChatRole::kUser:
        follows_calls = false;
        TM_RETURN_IF_ERROR(RenderUser(chat, i, prompt));
        break;
    }
  }
  return Status::Ok();
}

// v3 keeps all tool traffic, with ids.
Status RenderV3(const Chat& chat, Prompt* prompt) {
  for (size_t i = 0; i < chat.turns.size(); ++i) {
    const Turn& turn = chat.turns[i];
    switch (turn.role) {
      case ChatRole::kAssistant:
        TM_RETURN_IF_ERROR(RefuseContentBesideCalls(turn));
        TM_RETURN_IF_ERROR(RenderAssistant(turn, CallIds::kShown, prompt));
        break;
      case ChatRole::kTool: {
        std::string json = "{\"content\": " + turn.content + ", \"call_id\": ";
        AppendPythonJsonString(turn.call_id, &json);
        json += "}";
        TM_RETURN_IF_ERROR(prompt->Block("[TOOL_RESULTS]", turn.label, json, "[/TOOL_RESULTS]"));
        break;
      }
      case ChatRole::kSystem:  // became the system prompt
      case ChatRole::kUser:
        TM_RETURN_IF_ERROR(RenderUser(chat, i, prompt));
        break;
    }
  }
  return Status::Ok();
}

// v7 has system turns, results as plain text, and content beside calls.
Status RenderV7(const Chat& chat, Prompt* prompt) {
  for (size_t i = 0; i < chat.turns.size(); ++i) {
    const Turn& turn = chat.turns[i];
    switch (turn.role) {
      case ChatRole::kAssistant:
        if (turn.content.empty() && turn.calls.empty()) {
          return InvalidArgument(turn.label +
                                 ": an assistant message has content or tool calls, this one has neither");
        }
        TM_RETURN_IF_ERROR(RenderAssistant(turn, CallIds::kShown, prompt));
        break;
      case ChatRole::kTool:
        TM_RETURN_IF_ERROR(prompt->Block("[TOOL_RESULTS]", turn.label, turn.call_id, "[TOOL_CONTENT]"));
        TM_RETURN_IF_ERROR(prompt->Text(turn.label, turn.content));
        TM_RETURN_IF_ERROR(prompt->Control("[/TOOL_RESULTS]"));
        break;
      case ChatRole::kSystem:
        TM_RETURN_IF_ERROR(prompt->Block("[SYSTEM_PROMPT]", turn.label, turn.content, "[/SYSTEM_PROMPT]"));
        break;
      case ChatRole::kUser:
        TM_RETURN_IF_ERROR(RenderUser(chat, i, prompt));
        break;
    }
  }
  return Status::Ok();
}

}  // namespace

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

StatusOr<RenderedChat> RenderChat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                  std::span<const ToolDefinition> tools, const ChatOptions& options) {
  const TokenizerVersion version = options.format.value_or(tokenizer.version());
  const auto format = std::find_if(std::begin(kFormats), std::end(kFormats),
                                   [&](const ChatFormat& known) { return known.version == version; });
  TM_CHECK(format != std::end(kFormats), "no chat format for %s", TokenizerVersionName(version));

  std::vector<ChatMessage> continued;
  if (options.continue_final_message) {
    if (messages.empty() || messages.back().role != ChatRole::kAssistant) {
      return InvalidArgument("continue_final_message: the last message is not from the assistant");
    }
    continued.assign(messages.begin(), messages.end());
    continued.back().prefix = true;
    messages = continued;
  }
  TM_RETURN_IF_ERROR(CheckMessages(*format, messages));
  TM_ASSIGN_OR_RETURN(const Chat chat, Normalize(*format, messages, tools));
  Prompt prompt(tokenizer);
  TM_RETURN_IF_ERROR(prompt.Begin());
  TM_RETURN_IF_ERROR(format->render(chat, &prompt));
  return prompt.Finish();
}

}  // namespace tramontane
