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
  bool content_beside_calls;  // an assistant's turn may have both; else its calls win
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
// What is checked and rendered.

// A message that says something, and its place in the request.
struct Said {
  const ChatMessage* message;
  size_t index;
};

bool IsEmpty(const ChatMessage& message) { return !message.content || message.content->empty(); }

// All but the assistant's messages with neither content nor calls: clients send an answer back as they got
// it, and an answer that was cut off at once is such a message.
std::vector<Said> WhatIsSaid(std::span<const ChatMessage> messages) {
  std::vector<Said> said;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const bool says_nothing =
        message.role == ChatRole::kAssistant && IsEmpty(message) && message.tool_calls.empty();
    if (!says_nothing) said.push_back({&message, i});
  }
  return said;
}

// ---------------------------------------------------------------------------------------------------------------
// Checks, on the messages as they came.

std::string MessageLabel(size_t index) { return "messages[" + std::to_string(index) + "]"; }
std::string CallLabel(size_t message, size_t call) {
  return MessageLabel(message) + ".tool_calls[" + std::to_string(call) + "]";
}
std::string ToolLabel(size_t index) { return "tools[" + std::to_string(index) + "]"; }
std::string Quoted(std::string_view text) { return "'" + Excerpt(text) + "'"; }

// What is wrong with what lies at `path`.
Status Fault(std::string path, std::string sentence) {
  return InvalidArgument(std::move(sentence)).WithField(std::move(path));
}

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
  return Fault(label,
               "function name " + Quoted(name) + " is not 1 to 64 letters, digits, underscores and dashes");
}

Status CheckCallId(const std::string& label, std::string_view id) {
  const std::string_view body = WithoutFinalNewline(id);
  if (body.size() == 9 && std::all_of(body.begin(), body.end(), IsLetterOrDigit)) return Status::Ok();
  return Fault(label, "tool call id " + Quoted(id) + " is not 9 letters and digits");
}

Status CheckUtf8(const std::string& label, std::string_view text) {
  const auto invalid = FirstInvalidUtf8(text);
  if (!invalid) return Status::Ok();
  return Fault(label, "not UTF-8 at byte " + std::to_string(*invalid));
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

// The last message that keeps its place: a system prompt inside a user turn has none.
const Said* LastInPlace(const ChatFormat& format, std::span<const Said> said) {
  for (size_t i = said.size(); i > 0; --i) {
    if (format.system_turns || said[i - 1].message->role != ChatRole::kSystem) return &said[i - 1];
  }
  return nullptr;
}

Status CheckEnds(const ChatFormat& format, std::span<const Said> said) {
  if (said.empty()) return Fault("messages", "a conversation needs at least one message");
  const ChatRole first = said.front().message->role;
  if (said.size() == 1 && first != ChatRole::kUser && first != ChatRole::kSystem) {
    return Fault(
        MessageLabel(said.front().index),
        std::string("a conversation starts with a user or system message, not ") + ChatRoleName(first));
  }
  const Said* last = LastInPlace(format, said);
  if (last == nullptr || last->message->role != ChatRole::kAssistant || last->message->prefix)
    return Status::Ok();
  if (last == &said.back()) {
    return Fault(MessageLabel(last->index),
                 "the last message is from the user or a tool, or an assistant's with prefix set");
  }
  return Fault(MessageLabel(said.back().index),
               std::string("chat format ") + TokenizerVersionName(format.version) +
                   " has no place for a system message between the assistant's answer and the next one");
}

// A result follows calls or another result. A system message may come late: mistral-common knows it only
// before the first answer, but agents hand a conversation on with one.
Status CheckOrder(const ChatFormat& format, std::span<const Said> said) {
  TM_RETURN_IF_ERROR(CheckEnds(format, said));
  for (size_t i = 1; i < said.size(); ++i) {
    const ChatRole before = said[i - 1].message->role;
    const bool before_is_prompt = before == ChatRole::kSystem || before == ChatRole::kUser;
    if (said[i].message->role != ChatRole::kTool || !before_is_prompt) continue;
    return Fault(MessageLabel(said[i].index),
                 std::string("a tool message cannot follow a ") + ChatRoleName(before) + " message");
  }
  return Status::Ok();
}

// Text that the assistant adds to calls it has just made.
bool IsBesideCalls(std::span<const Said> said, size_t i) {
  return said[i - 1].message->role == ChatRole::kAssistant && said[i].message->tool_calls.empty();
}

// Every call has its result before the assistant speaks again. The first message's calls do not count: that
// is how mistral-common counts.
Status CheckResultCounts(std::span<const Said> said) {
  ptrdiff_t open_calls = 0;
  const auto mismatch = [&](size_t i) {
    return Fault(MessageLabel(said[i].index), std::string("not as many tool results as tool calls before ") +
                                                  (i + 1 == said.size() ? "the end" : "this message"));
  };
  for (size_t i = 1; i < said.size(); ++i) {
    const ChatMessage& message = *said[i].message;
    if (message.role == ChatRole::kTool) {
      --open_calls;
    } else if (message.role == ChatRole::kAssistant && !IsBesideCalls(said, i)) {
      if (open_calls != 0) return mismatch(i);
      open_calls = static_cast<ptrdiff_t>(message.tool_calls.size());
    }
  }
  return open_calls == 0 ? Status::Ok() : mismatch(said.size() - 1);
}

Status CheckAssistant(const ChatFormat& format, const ChatMessage& message, size_t index, bool is_last) {
  for (size_t call = 0; call < message.tool_calls.size(); ++call) {
    const std::string label = CallLabel(index, call);
    if (format.nine_character_ids) TM_RETURN_IF_ERROR(CheckCallId(label, message.tool_calls[call].id));
    TM_RETURN_IF_ERROR(CheckFunctionName(label, message.tool_calls[call].name));
  }
  if (message.prefix && !is_last) {
    return Fault(MessageLabel(index), "only the last message may have prefix set");
  }
  return Status::Ok();
}

Status CheckTool(const ChatFormat& format, const ChatMessage& message, size_t index) {
  const std::string label = MessageLabel(index);
  if (message.name) TM_RETURN_IF_ERROR(CheckFunctionName(label, *message.name));
  if (!format.nine_character_ids) return Status::Ok();
  if (!message.tool_call_id) return Fault(label, "a tool message needs a tool_call_id");
  return CheckCallId(label, *message.tool_call_id);
}

Status CheckContent(const ChatFormat& format, const ChatMessage& message, size_t index, bool is_last) {
  TM_RETURN_IF_ERROR(CheckMessageUtf8(message, index));
  if (message.role == ChatRole::kAssistant) return CheckAssistant(format, message, index, is_last);
  const std::string label = MessageLabel(index);
  const std::string one = std::string("a ") + ChatRoleName(message.role) + " message ";
  if (!message.content) return Fault(label, one + "needs content");
  if (!message.tool_calls.empty()) return Fault(label, one + "has no tool_calls");
  if (message.prefix) return Fault(label, one + "has no prefix");
  if (message.role == ChatRole::kTool) return CheckTool(format, message, index);
  if (message.tool_call_id) return Fault(label, one + "has no tool_call_id");
  return Status::Ok();
}

Status CheckMessages(const ChatFormat& format, std::span<const Said> said) {
  TM_RETURN_IF_ERROR(CheckOrder(format, said));
  for (const Said& one : said) {
    TM_RETURN_IF_ERROR(CheckContent(format, *one.message, one.index, &one == &said.back()));
  }
  return CheckResultCounts(said);
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
    return Fault(label, value.status().message());
  }
  return json;
}

// Adds another paragraph, if it is not empty.
void AppendParagraph(std::string_view paragraph, std::string* text) {
  if (paragraph.empty()) return;
  if (!text->empty()) *text += "\n\n";
  *text += paragraph;
}

// The empty ones too.
std::string JoinParagraphs(std::span<const std::string_view> paragraphs) {
  std::string text;
  for (const std::string_view& paragraph : paragraphs) {
    if (&paragraph != &paragraphs.front()) text += "\n\n";
    text += paragraph;
  }
  return text;
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
    if (!parameters.ok()) return Fault(label + ".parameters", parameters.status().message());
    if (parameters->kind != JsonValue::Kind::kObject) {
      return Fault(label + ".parameters", "not a JSON object");
    }
    if (const Status status = CheckJsonSchema(*parameters); !status.ok()) {
      return Fault(label + ".parameters", "not a JSON Schema: " + status.message());
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

// Where a turn cannot hold both, its text is left out.
Status LetCallsWin(std::vector<Turn>* turns) {
  for (Turn& turn : *turns) {
    if (turn.calls.empty()) continue;
    if (turn.prefix) return Fault(turn.label, "prefix goes on from text, not from tool calls");
    turn.content.clear();
  }
  return Status::Ok();
}

StatusOr<Chat> Normalize(const ChatFormat& format, std::span<const Said> said,
                         std::span<const ToolDefinition> tools) {
  Chat chat;
  std::vector<std::string_view> system_paragraphs;
  TM_ASSIGN_OR_RETURN(chat.tools, ToolsJson(tools));
  for (size_t i = 0; i < said.size(); ++i) {
    const ChatMessage& message = *said[i].message;
    const ChatRole role = message.role;
    if (role == ChatRole::kSystem && !format.system_turns) {
      if (message.in_parts || !message.content->empty()) system_paragraphs.push_back(*message.content);
      continue;
    }
    const bool joins_neighbours = role == ChatRole::kUser || role == ChatRole::kAssistant;
    if (i == 0 || !joins_neighbours || said[i - 1].message->role != role) chat.turns.emplace_back();
    TM_RETURN_IF_ERROR(MergeInto(format, message, said[i].index, &chat.turns.back()));
  }
  chat.system_prompt = JoinParagraphs(system_paragraphs);
  if (!format.content_beside_calls) TM_RETURN_IF_ERROR(LetCallsWin(&chat.turns));
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
    if (!ids.ok()) return Fault(label, ids.status().message());
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
      return Fault(turn.label, "chat format v1 has no tools");
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
        if (is_past && !turn.calls.empty()) break;
        TM_RETURN_IF_ERROR(RenderAssistant(turn, CallIds::kLeftOut, prompt));
        break;
      case ChatRole::kTool: {
        if (is_past) break;
        if (follows_calls && ++results > 1) {
          return Fault(turn.label, "chat format v2 holds one tool result for an assistant message");
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
      return Fault("continue_final_message", "the last message is not from the assistant");
    }
    if (messages.back().prefix) {
      return Fault("continue_final_message", "the last message has prefix set; one of the two is enough");
    }
    continued.assign(messages.begin(), messages.end());
    continued.back().prefix = true;
    messages = continued;
  }
  const std::vector<Said> said = WhatIsSaid(messages);
  TM_RETURN_IF_ERROR(CheckMessages(*format, said));
  TM_ASSIGN_OR_RETURN(const Chat chat, Normalize(*format, said, tools));
  Prompt prompt(tokenizer);
  TM_RETURN_IF_ERROR(prompt.Begin());
  TM_RETURN_IF_ERROR(format->render(chat, &prompt));
  return prompt.Finish();
}

}  // namespace tramontane
