#include "models/chat/chat_check.h"

#include <algorithm>
#include <set>

#include "kernels/core/utf8.h"
#include "models/tokenizer/python_json.h"

namespace tramontane {
namespace {

bool IsThinking(const ContentPart& part) { return part.kind == ContentPart::Kind::kThinking; }

bool HasContent(const ChatMessage& message) { return message.content || !message.parts.empty(); }

// No thinking, and no text that is not empty.
bool SaysNothing(const ChatMessage& message) {
  const auto is_empty = [](const ContentPart& part) { return !IsThinking(part) && part.text.empty(); };
  return (!message.content || message.content->empty()) &&
         std::all_of(message.parts.begin(), message.parts.end(), is_empty);
}

bool IsLetterOrDigit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// mistral-common's patterns end in '$', which in Python also matches before a final newline.
std::string_view WithoutFinalNewline(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

Status CheckCallId(const MistralFormat& format, const std::string& label, std::string_view id) {
  if (format.call_ids == MistralFormat::CallIds::kUnchecked) return Status::Ok();
  const std::string what = "tool call id " + Quoted(id);
  if (format.call_ids == MistralFormat::CallIds::kAny) {
    return id.empty() || id == "null" ? ChatFault(label, what + " names no call") : Status::Ok();
  }
  const std::string_view body = WithoutFinalNewline(id);
  if (body.size() == 9 && std::all_of(body.begin(), body.end(), IsLetterOrDigit)) return Status::Ok();
  return ChatFault(label, what + " is not 9 letters and digits");
}

// The last message that keeps its place: a system prompt inside a user turn has none.
const SaidMessage* LastInPlace(const MistralFormat& format, std::span<const SaidMessage> said) {
  for (size_t i = said.size(); i > 0; --i) {
    if (format.system_turns || said[i - 1].message->role != ChatRole::kSystem) return &said[i - 1];
  }
  return nullptr;
}

Status CheckEnds(const MistralFormat& format, std::span<const SaidMessage> said) {
  if (said.empty()) return ChatFault("messages", "a conversation needs at least one message");
  const ChatRole first = said.front().message->role;
  if (said.size() == 1 && first != ChatRole::kUser && first != ChatRole::kSystem) {
    return ChatFault(
        MessageLabel(said.front().index),
        std::string("a conversation starts with a user or system message, not ") + ChatRoleName(first));
  }
  const SaidMessage* last = LastInPlace(format, said);
  if (last == nullptr || last->message->role != ChatRole::kAssistant || last->message->prefix)
    return Status::Ok();
  if (last == &said.back()) {
    return ChatFault(MessageLabel(last->index),
                     "the last message is from the user or a tool, or an assistant's with prefix set");
  }
  return ChatFault(MessageLabel(said.back().index),
                   std::string("chat format ") + TokenizerVersionName(format.version) +
                       " has no place for a system message between the assistant's answer and the next one");
}

// A result follows calls or another result. A system message may come late: mistral-common knows it only
// before the first answer, but agents hand a conversation on with one.
Status CheckOrder(const MistralFormat& format, std::span<const SaidMessage> said) {
  TM_RETURN_IF_ERROR(CheckEnds(format, said));
  for (size_t i = 1; i < said.size(); ++i) {
    const ChatRole before = said[i - 1].message->role;
    const bool before_is_prompt = before == ChatRole::kSystem || before == ChatRole::kUser;
    if (said[i].message->role != ChatRole::kTool || !before_is_prompt) continue;
    return ChatFault(MessageLabel(said[i].index),
                     std::string("a tool message cannot follow a ") + ChatRoleName(before) + " message");
  }
  return Status::Ok();
}

Status ResultMismatch(std::span<const SaidMessage> said, size_t i) {
  return ChatFault(MessageLabel(said[i].index),
                   std::string("not as many tool results as tool calls before ") +
                       (i + 1 == said.size() ? "the end" : "this message"));
}

// Where results are counted from: the first message's calls do not count, which is how mistral-common counts.
size_t FirstCounted(std::span<const SaidMessage> said) {
  const bool is_first = said.front().index == 0 || said.front().message->role != ChatRole::kAssistant;
  return is_first ? 1 : 0;
}

// Every call has its result before the assistant speaks again.
Status CheckResultCounts(std::span<const SaidMessage> said) {
  ptrdiff_t open_calls = 0;
  for (size_t i = FirstCounted(said); i < said.size(); ++i) {
    const ChatMessage& message = *said[i].message;
    if (message.role == ChatRole::kTool) {
      --open_calls;
    } else if (message.role == ChatRole::kAssistant && !IsBesideCalls(said, i)) {
      if (open_calls != 0) return ResultMismatch(said, i);
      open_calls = static_cast<ptrdiff_t>(message.tool_calls.size());
    }
  }
  return open_calls == 0 ? Status::Ok() : ResultMismatch(said, said.size() - 1);
}

// The same by their ids: each result belongs to a call of the last assistant's message that had calls, and no
// two to one.
Status CheckResultIds(std::span<const SaidMessage> said) {
  std::set<std::string_view> calls;
  std::set<std::string_view> results;
  for (size_t i = FirstCounted(said); i < said.size(); ++i) {
    const ChatMessage& message = *said[i].message;
    const std::string label = MessageLabel(said[i].index);
    if (message.role == ChatRole::kTool) {
      const std::string_view id = message.tool_call_id ? std::string_view(*message.tool_call_id) : "";
      if (!calls.contains(id)) {
        return ChatFault(label, "tool_call_id " + Quoted(id) + " is that of no call before it");
      }
      if (!results.insert(id).second) {
        return ChatFault(label, "tool_call_id " + Quoted(id) + " has a result already");
      }
    } else if (message.role == ChatRole::kAssistant && !IsBesideCalls(said, i)) {
      if (calls.size() != results.size()) return ResultMismatch(said, i);
      calls.clear();
      results.clear();
      for (size_t call = 0; call < message.tool_calls.size(); ++call) {
        if (calls.insert(message.tool_calls[call].id).second) continue;
        return ChatFault(
            CallLabel(said[i].index, call),
            "tool call id " + Quoted(message.tool_calls[call].id) + " stands twice in one message");
      }
    }
  }
  return calls.size() == results.size() ? Status::Ok() : ResultMismatch(said, said.size() - 1);
}

Status CheckAssistant(const MistralFormat& format, const ChatMessage& message, size_t index, bool is_last) {
  for (size_t call = 0; call < message.tool_calls.size(); ++call) {
    const std::string label = CallLabel(index, call);
    TM_RETURN_IF_ERROR(CheckCallId(format, label, message.tool_calls[call].id));
    TM_RETURN_IF_ERROR(CheckFunctionName(label, message.tool_calls[call].name));
  }
  if (message.prefix && !is_last) {
    return ChatFault(MessageLabel(index), "only the last message may have prefix set");
  }
  return Status::Ok();
}

Status CheckTool(const MistralFormat& format, const ChatMessage& message, size_t index) {
  const std::string label = MessageLabel(index);
  if (message.name) TM_RETURN_IF_ERROR(CheckFunctionName(label, *message.name));
  if (format.call_ids == MistralFormat::CallIds::kUnchecked) return Status::Ok();
  if (!message.tool_call_id) return ChatFault(label, "a tool message needs a tool_call_id");
  return CheckCallId(format, label, *message.tool_call_id);
}

Status CheckThinking(const MistralFormat& format, const ChatMessage& message, size_t index) {
  using Thinking = MistralFormat::Thinking;
  if (std::none_of(message.parts.begin(), message.parts.end(), IsThinking)) return Status::Ok();
  const std::string label = MessageLabel(index) + ".content";
  if (message.role == ChatRole::kUser || message.role == ChatRole::kTool) {
    return ChatFault(label, std::string("a ") + ChatRoleName(message.role) + " message has no thinking");
  }
  const bool is_system = message.role == ChatRole::kSystem;
  if (!is_system || format.thinking == Thinking::kOfAssistantAndSystem) return Status::Ok();
  return ChatFault(label, std::string("chat format ") + TokenizerVersionName(format.version) +
                              " has no thinking in a system message");
}

Status CheckContent(const MistralFormat& format, const ChatMessage& message, size_t index, bool is_last) {
  TM_RETURN_IF_ERROR(CheckMessageUtf8(message, index));
  TM_RETURN_IF_ERROR(CheckThinking(format, message, index));
  if (message.role == ChatRole::kAssistant) return CheckAssistant(format, message, index, is_last);
  const std::string label = MessageLabel(index);
  const std::string one = std::string("a ") + ChatRoleName(message.role) + " message ";
  if (!HasContent(message)) return ChatFault(label, one + "needs content");
  if (!message.tool_calls.empty()) return ChatFault(label, one + "has no tool_calls");
  if (message.prefix) return ChatFault(label, one + "has no prefix");
  if (message.role == ChatRole::kTool) return CheckTool(format, message, index);
  if (message.tool_call_id) return ChatFault(label, one + "has no tool_call_id");
  return Status::Ok();
}

}  // namespace

StatusOr<std::span<const ChatMessage>> ContinuedMessages(std::span<const ChatMessage> messages,
                                                         const ChatOptions& options,
                                                         std::vector<ChatMessage>* copy) {
  if (!options.continue_final_message) return messages;
  if (messages.empty() || messages.back().role != ChatRole::kAssistant) {
    return ChatFault("continue_final_message", "the last message is not from the assistant");
  }
  copy->assign(messages.begin(), messages.end());
  copy->back().prefix = true;
  return std::span<const ChatMessage>(*copy);
}

std::span<const ChatMessage> WithoutThoughts(std::span<const ChatMessage> messages,
                                             std::vector<ChatMessage>* copy) {
  const auto thinks = [](const ChatMessage& message) {
    return message.role == ChatRole::kAssistant &&
           std::any_of(message.parts.begin(), message.parts.end(), IsThinking);
  };
  if (std::none_of(messages.begin(), messages.end(), thinks)) return messages;
  if (messages.data() != copy->data()) copy->assign(messages.begin(), messages.end());
  for (ChatMessage& message : *copy) {
    if (thinks(message)) std::erase_if(message.parts, IsThinking);
  }
  return *copy;
}

Status CheckNoTemplateArguments(const ChatOptions& options, std::string_view format_name) {
  if (!options.template_kwargs_json) return Status::Ok();
  const StatusOr<JsonValue> values = ParsePythonJson(*options.template_kwargs_json);
  if (values.ok() && values->kind == JsonValue::Kind::kObject) {
    const auto asks_for_nothing = [](const JsonMember& member) {
      return member.key == "enable_thinking" && member.value.kind == JsonValue::Kind::kBool &&
             !member.value.boolean;
    };
    if (std::all_of(values->members.begin(), values->members.end(), asks_for_nothing)) return Status::Ok();
  }
  return ChatFault("chat_template_kwargs",
                   "chat format " + std::string(format_name) + " is no template, so it has no arguments");
}

std::vector<SaidMessage> WhatIsSaid(std::span<const ChatMessage> messages) {
  std::vector<SaidMessage> said;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const bool is_empty_answer =
        message.role == ChatRole::kAssistant && SaysNothing(message) && message.tool_calls.empty();
    const bool goes_on = message.prefix && i + 1 == messages.size() && !said.empty() &&
                         said.back().message->role == ChatRole::kAssistant;
    // An empty list of texts is a message to mistral-common, which wants two where the assistant begins.
    const bool begins = said.empty() && !message.parts.empty() && i + 1 < messages.size() &&
                        messages[i + 1].role == ChatRole::kAssistant;
    if (!is_empty_answer || goes_on || begins) said.push_back({&message, i});
  }
  return said;
}

Status CheckMessages(const MistralFormat& format, std::span<const SaidMessage> said) {
  TM_RETURN_IF_ERROR(CheckOrder(format, said));
  for (const SaidMessage& one : said) {
    TM_RETURN_IF_ERROR(CheckContent(format, *one.message, one.index, &one == &said.back()));
  }
  return format.results == MistralFormat::Results::kMatchedById ? CheckResultIds(said)
                                                                : CheckResultCounts(said);
}

bool IsBesideCalls(std::span<const SaidMessage> said, size_t i) {
  return i > 0 && said[i - 1].message->role == ChatRole::kAssistant && said[i].message->tool_calls.empty();
}

Status ChatFault(std::string path, std::string sentence) {
  return InvalidArgument(std::move(sentence)).WithField(std::move(path));
}

Status CheckFunctionName(const std::string& label, std::string_view name) {
  const std::string_view body = WithoutFinalNewline(name);
  const bool letters_fit = std::all_of(body.begin(), body.end(),
                                       [](char c) { return IsLetterOrDigit(c) || c == '_' || c == '-'; });
  if (letters_fit && !body.empty() && body.size() <= 128) return Status::Ok();
  return ChatFault(
      label, "function name " + Quoted(name) + " is not 1 to 128 letters, digits, underscores and dashes");
}

Status CheckUtf8(const std::string& label, std::string_view text) {
  const auto invalid = FirstInvalidUtf8(text);
  if (!invalid) return Status::Ok();
  return ChatFault(label, "not UTF-8 at byte " + std::to_string(*invalid));
}

Status CheckMessageUtf8(const ChatMessage& message, size_t index) {
  const std::string label = MessageLabel(index);
  if (message.content) TM_RETURN_IF_ERROR(CheckUtf8(label + ".content", *message.content));
  for (size_t part = 0; part < message.parts.size(); ++part) {
    TM_RETURN_IF_ERROR(CheckUtf8(label + ".content[" + std::to_string(part) + "]", message.parts[part].text));
  }
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

std::string MessageLabel(size_t index) { return "messages[" + std::to_string(index) + "]"; }
std::string CallLabel(size_t message, size_t call) {
  return MessageLabel(message) + ".tool_calls[" + std::to_string(call) + "]";
}
std::string Quoted(std::string_view text) { return "'" + Excerpt(text) + "'"; }

}  // namespace tramontane
