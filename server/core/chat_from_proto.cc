#include "server/core/chat_from_proto.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/answers/called_tools.h"

namespace tramontane {
namespace {

std::optional<ChatRole> RoleFromProto(v1::Role role) {
  switch (role) {
    case v1::ROLE_SYSTEM:
      return ChatRole::kSystem;
    case v1::ROLE_USER:
      return ChatRole::kUser;
    case v1::ROLE_ASSISTANT:
      return ChatRole::kAssistant;
    case v1::ROLE_TOOL:
      return ChatRole::kTool;
    default:
      return std::nullopt;
  }
}

RpcError PartsFromProto(const std::string& path, const v1::ChatMessage& proto, ChatMessage* message) {
  if (proto.has_content() && !proto.parts().empty()) {
    return FieldError(path + ".parts", "is given beside content; give one of the two");
  }
  if (proto.has_content()) message->content = proto.content();
  for (int i = 0; i < proto.parts_size(); ++i) {
    const v1::ContentPart& part = proto.parts(i);
    if (part.has_thinking()) {
      message->parts.push_back({.kind = ContentPart::Kind::kThinking,
                                .text = part.thinking().text(),
                                .closed = !part.thinking().open()});
    } else if (part.has_text()) {
      message->parts.push_back({.text = part.text()});
    } else {
      return FieldError(FieldElement(path + ".parts", i),
                        "is empty: exactly one of text and thinking is needed");
    }
  }
  return {};
}

RpcError MessageFromProto(const std::string& path, const v1::ChatMessage& proto, ChatMessage* message) {
  const std::optional<ChatRole> role = RoleFromProto(proto.role());
  if (!role) {
    return FieldError(path + ".role", "is " + std::to_string(proto.role()) +
                                          ", which is none of ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, "
                                          "ROLE_TOOL");
  }
  message->role = *role;
  if (RpcError error = PartsFromProto(path, proto, message); !error.ok()) return error;
  for (const v1::ToolCall& call : proto.tool_calls()) {
    message->tool_calls.push_back({call.id(), call.name(), call.arguments_json()});
  }
  if (proto.has_tool_call_id()) message->tool_call_id = proto.tool_call_id();
  if (proto.has_name()) message->name = proto.name();
  message->prefix = proto.prefix();
  return {};
}

// What a tokenizer lacks is the fault of no field.
RpcError ChatError(const Status& status) {
  const bool is_of_the_request = status.code() == StatusCode::kInvalidArgument;
  return ToRpcError(is_of_the_request ? Status(status).InField("chat") : status);
}

int64_t BytesBetweenBlanks(const std::string& text) {
  constexpr char kBlanks[] = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string::npos) return 0;
  return static_cast<int64_t>(text.find_last_not_of(kBlanks) + 1 - begin);
}

}  // namespace

std::vector<std::string> LeftOutFields(const ChatFormat& format, const v1::Chat& proto) {
  constexpr size_t kMost = 16;
  std::vector<std::string> fields;
  for (int i = 0; i < proto.messages_size() && !format.keeps_thoughts() && fields.size() < kMost; ++i) {
    const v1::ChatMessage& message = proto.messages(i);
    const bool thinks = std::any_of(message.parts().begin(), message.parts().end(),
                                    [](const v1::ContentPart& part) { return part.has_thinking(); });
    if (thinks) fields.push_back(FieldElement("chat.messages", static_cast<size_t>(i)) + ".thinking");
  }
  return fields;
}

int64_t LeastTextBytes(const v1::Chat& chat) {
  int64_t bytes = 0;
  for (const v1::ChatMessage& message : chat.messages()) {
    if (message.tool_calls_size() > 0) continue;
    bytes += BytesBetweenBlanks(message.content());
    for (const v1::ContentPart& part : message.parts()) bytes += BytesBetweenBlanks(part.text());
  }
  return bytes;
}

RpcError RenderChatProto(const ChatFormat& format, const v1::Chat& proto, RenderedChat* rendered) {
  std::vector<ChatMessage> messages;
  for (int i = 0; i < proto.messages_size(); ++i) {
    const std::string path = FieldElement("chat.messages", i);
    RpcError error = MessageFromProto(path, proto.messages(i), &messages.emplace_back());
    if (!error.ok()) return error;
  }
  if (RpcError error = CheckToolChoice(proto); !error.ok()) return error;
  std::vector<ToolDefinition> tools;
  for (const v1::Tool& tool : proto.tools()) {
    if (proto.tool_choice().mode() == v1::TOOL_CHOICE_MODE_NONE) break;
    tools.push_back({tool.name(), tool.description(), tool.parameters_json()});
  }
  ChatOptions options;
  if (proto.has_add_generation_prompt()) options.add_generation_prompt = proto.add_generation_prompt();
  if (proto.has_reasoning_effort()) options.reasoning_effort = proto.reasoning_effort();
  if (proto.has_answer_schema_json()) options.answer_schema_json = proto.answer_schema_json();
  if (proto.has_chat_template_kwargs_json()) options.template_kwargs_json = proto.chat_template_kwargs_json();
  StatusOr<RenderedChat> result = format.Render(messages, tools, options);
  if (!result.ok()) return ChatError(result.status());
  *rendered = std::move(result).value();
  return {};
}

}  // namespace tramontane
