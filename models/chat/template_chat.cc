#include "models/chat/template_chat.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "models/chat/chat_check.h"
#include "models/tokenizer/python_json.h"

namespace tramontane {
namespace {

// Between the texts of one message that came in parts.
constexpr std::string_view kBetweenTexts = "\n";

JsonValue EmptyValue(JsonValue::Kind kind) {
  JsonValue value;
  value.kind = kind;
  return value;
}

JsonValue StringValue(std::string text) {
  JsonValue value = EmptyValue(JsonValue::Kind::kString);
  value.text = std::move(text);
  return value;
}

JsonValue BoolValue(bool boolean) {
  JsonValue value = EmptyValue(JsonValue::Kind::kBool);
  value.boolean = boolean;
  return value;
}

JsonValue ObjectValue(std::vector<JsonMember> members) {
  JsonValue value = EmptyValue(JsonValue::Kind::kObject);
  value.members = std::move(members);
  return value;
}

// The text of `message`'s parts of one kind; none where it has none.
std::optional<std::string> Joined(const ChatMessage& message, ContentPart::Kind kind) {
  std::optional<std::string> joined;
  for (const ContentPart& part : message.parts) {
    if (part.kind != kind) continue;
    if (joined) *joined += kBetweenTexts;
    joined = joined.value_or("") + part.text;
  }
  return joined;
}

// An object where the text is one; else the text, as the model wrote it.
JsonValue ArgumentsValue(const std::string& json) {
  if (json.empty()) return ObjectValue({});
  StatusOr<JsonValue> parsed = ParsePythonJson(json);
  if (parsed.ok() && parsed->kind == JsonValue::Kind::kObject) return std::move(parsed).value();
  return StringValue(json);
}

JsonValue CallValue(const ToolCall& call) {
  JsonValue function =
      ObjectValue({{"name", StringValue(call.name)}, {"arguments", ArgumentsValue(call.arguments_json)}});
  return ObjectValue(
      {{"id", StringValue(call.id)}, {"type", StringValue("function")}, {"function", std::move(function)}});
}

// Without the role, which is none of the sender's words. Absent content is null beside calls, as transformers
// has it.
JsonValue MessageValue(const ChatMessage& message) {
  std::vector<JsonMember> members;
  std::optional<std::string> content = message.content;
  if (!content) content = Joined(message, ContentPart::Kind::kText);
  if (!content && message.tool_calls.empty()) content = "";
  members.push_back({"content", content ? StringValue(*content) : JsonValue()});
  const auto thinking = Joined(message, ContentPart::Kind::kThinking);
  if (thinking) members.push_back({"reasoning_content", StringValue(*thinking)});
  if (message.name) members.push_back({"name", StringValue(*message.name)});
  if (message.tool_call_id) members.push_back({"tool_call_id", StringValue(*message.tool_call_id)});
  if (!message.tool_calls.empty()) {
    JsonValue calls = EmptyValue(JsonValue::Kind::kArray);
    for (const ToolCall& call : message.tool_calls) calls.items.push_back(CallValue(call));
    members.push_back({"tool_calls", std::move(calls)});
  }
  return ObjectValue(std::move(members));
}

StatusOr<JsonValue> ToolValue(const ToolDefinition& tool, size_t index) {
  const std::string label = FieldElement("tools", index);
  TM_RETURN_IF_ERROR(CheckFunctionName(label + ".name", tool.name));
  TM_RETURN_IF_ERROR(CheckUtf8(label + ".description", tool.description));
  TM_RETURN_IF_ERROR(CheckUtf8(label + ".parameters", tool.parameters_json));
  StatusOr<JsonValue> parameters = tool.parameters_json.empty() ? StatusOr<JsonValue>(ObjectValue({}))
                                                                : ParsePythonJson(tool.parameters_json);
  if (!parameters.ok()) return ChatFault(label + ".parameters", parameters.status().message());
  if (parameters->kind != JsonValue::Kind::kObject) {
    return ChatFault(label + ".parameters", "not a JSON object");
  }
  JsonValue function = ObjectValue({{"name", StringValue(tool.name)},
                                    {"description", StringValue(tool.description)},
                                    {"parameters", std::move(parameters).value()}});
  return ObjectValue({{"type", StringValue("function")}, {"function", std::move(function)}});
}

StatusOr<JsonValue> ToolsValue(std::span<const ToolDefinition> tools) {
  JsonValue values = EmptyValue(tools.empty() ? JsonValue::Kind::kNull : JsonValue::Kind::kArray);
  for (size_t i = 0; i < tools.size(); ++i) {
    TM_ASSIGN_OR_RETURN(JsonValue tool, ToolValue(tools[i], i));
    values.items.push_back(std::move(tool));
  }
  return values;
}

// The members of chat_template_kwargs.
StatusOr<JsonValue> TemplateArguments(const ChatOptions& options) {
  constexpr std::array kOurs = {"messages", "tools", "add_generation_prompt", "continue_final_message"};
  if (!options.template_kwargs_json) return ObjectValue({});
  const std::string label = "chat_template_kwargs";
  TM_RETURN_IF_ERROR(CheckUtf8(label, *options.template_kwargs_json));
  StatusOr<JsonValue> values = ParsePythonJson(*options.template_kwargs_json);
  if (!values.ok()) return ChatFault(label, values.status().message());
  if (values->kind != JsonValue::Kind::kObject) return ChatFault(label, "not a JSON object");
  for (const char* const name : kOurs) {
    const bool is_there = std::any_of(values->members.begin(), values->members.end(),
                                      [&](const JsonMember& member) { return member.key == name; });
    if (is_there) return ChatFault(label + "." + name, "is a field of the request itself");
  }
  return values;
}

// What a sender says, in one value: the messages without their roles, the tools, the template's arguments.
StatusOr<JsonValue> TypedValues(std::span<const ChatMessage> messages, std::span<const ToolDefinition> tools,
                                const ChatOptions& options) {
  JsonValue said = EmptyValue(JsonValue::Kind::kArray);
  for (size_t i = 0; i < messages.size(); ++i) {
    TM_RETURN_IF_ERROR(CheckMessageUtf8(messages[i], i));
    const bool may_go_on = messages[i].role == ChatRole::kAssistant && i + 1 == messages.size();
    if (messages[i].prefix && !may_go_on) {
      return ChatFault(MessageLabel(i), "only the last message, an assistant's, may have prefix set");
    }
    said.items.push_back(MessageValue(messages[i]));
  }
  TM_ASSIGN_OR_RETURN(JsonValue tool_values, ToolsValue(tools));
  TM_ASSIGN_OR_RETURN(JsonValue arguments, TemplateArguments(options));
  if (options.reasoning_effort) {
    arguments.members.insert(arguments.members.begin(),
                             {"reasoning_effort", StringValue(*options.reasoning_effort)});
  }
  return ObjectValue({{"messages", std::move(said)},
                      {"tools", std::move(tool_values)},
                      {"arguments", std::move(arguments)}});
}

void AddToken(const Tokenizer& tokenizer, const char* name, int32_t id, std::vector<JsonMember>* members) {
  if (id >= 0) members->push_back({name, StringValue(std::string(tokenizer.Piece(id)))});
}

// Everything that the template is given, `typed` broken by then.
JsonValue TemplateValues(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                         const ChatOptions& options, JsonValue typed) {
  JsonValue& said = typed.members[0].value;
  for (size_t i = 0; i < messages.size(); ++i) {
    std::vector<JsonMember>& members = said.items[i].members;
    members.insert(members.begin(), {"role", StringValue(ChatRoleName(messages[i].role))});
  }
  std::vector<JsonMember> members;
  AddToken(tokenizer, "bos_token", tokenizer.bos_id(), &members);
  AddToken(tokenizer, "eos_token", tokenizer.eos_id(), &members);
  AddToken(tokenizer, "unk_token", tokenizer.unk_id(), &members);
  members.push_back({"documents", {}});
  // Of the same name the last one counts.
  for (JsonMember& argument : typed.members[2].value.members) members.push_back(std::move(argument));
  members.push_back({"messages", std::move(said)});
  members.push_back({"tools", std::move(typed.members[1].value)});
  const bool goes_on = !messages.empty() && messages.back().prefix;
  members.push_back({"add_generation_prompt", BoolValue(options.add_generation_prompt && !goes_on)});
  return ObjectValue(std::move(members));
}

// The prompt ends where the last message does: at the mark that was put behind it. A template that trims what
// it is given takes the blank behind the mark, and then what the message ended with is trimmed too.
StatusOr<std::string> UpToMark(std::string rendered, const std::string& mark) {
  const size_t at = rendered.rfind(mark);
  if (at == std::string::npos) {
    return ChatFault(
        "messages",
        "the chat template does not show the end of the last message, so no answer can go on from it");
  }
  const bool keeps_blanks = rendered.compare(at + mark.size(), 1, " ") == 0;
  rendered.resize(at);
  if (!keeps_blanks) rendered.resize(rendered.find_last_not_of(" \t\r\n") + 1);
  return rendered;
}

}  // namespace

TemplateChatFormat::TemplateChatFormat(const Tokenizer& tokenizer, std::string text,
                                       std::unique_ptr<const JinjaTemplate> parsed, std::string why,
                                       std::optional<int32_t> end)
    : ChatFormat("jinja", std::move(why), TemplateAnswerSyntax(tokenizer, end)),
      tokenizer_(tokenizer),
      text_(std::move(text)),
      parsed_(std::move(parsed)),
      spellings_(tokenizer) {}

StatusOr<RenderedChat> TemplateChatFormat::RenderAnswered(std::span<const ChatMessage> messages,
                                                          std::span<const ToolDefinition> tools,
                                                          const ChatOptions& options) const {
  const std::time_t seconds = std::time(nullptr);
  std::tm now{};
  localtime_r(&seconds, &now);
  return RenderAt(now, messages, tools, options);
}

StatusOr<RenderedChat> TemplateChatFormat::RenderAt(const std::tm& now, std::span<const ChatMessage> messages,
                                                    std::span<const ToolDefinition> tools,
                                                    const ChatOptions& options) const {
  if (messages.empty()) return ChatFault("messages", "a conversation needs at least one message");
  std::vector<ChatMessage> copy;
  TM_ASSIGN_OR_RETURN(messages, ContinuedMessages(messages, options, &copy));
  TM_ASSIGN_OR_RETURN(JsonValue typed, TypedValues(messages, tools, options));
  TM_ASSIGN_OR_RETURN(const ControlText control, ControlText::For(spellings_, text_, typed));
  for (JsonMember& member : typed.members) {
    const bool is_ours = member.key == "arguments";  // whose names the template asks for
    control.BreakAll(is_ours ? ControlText::Keys::kAskedFor : ControlText::Keys::kTyped, &member.value);
  }
  const bool goes_on = messages.back().prefix;
  if (goes_on) {
    JsonValue& content = typed.members[0].value.items.back().members.front().value;
    if (content.kind != JsonValue::Kind::kString) {
      return ChatFault(MessageLabel(messages.size() - 1), "a message to go on from needs content");
    }
    content.text += control.mark() + " ";
  }
  StatusOr<std::string> rendered =
      parsed_->Render(TemplateValues(tokenizer_, messages, options, std::move(typed)), now);
  if (!rendered.ok())
    return ChatFault("messages", "the chat template refuses: " + rendered.status().message());
  if (goes_on) {
    TM_ASSIGN_OR_RETURN(rendered, UpToMark(std::move(rendered).value(), control.mark()));
  }
  StatusOr<std::vector<int32_t>> ids = control.Encode(tokenizer_, *rendered);
  if (!ids.ok()) return ChatFault("messages", ids.status().message());
  RenderedChat chat;
  chat.text = tokenizer_.Spelling(*ids);
  chat.ids = std::move(ids).value();
  return chat;
}

}  // namespace tramontane
