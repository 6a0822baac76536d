#include "server/api/shared/chat_builder.h"

#include <utility>

#include "kernels/core/status.h"
#include "server/answers/must_call.h"
#include "server/api/shared/tool_calls.h"
#include "server/base/text.h"

namespace tramontane {
namespace {

constexpr char kMessages[] = "chat.messages";

void AddThinking(const Json& part, v1::ChatMessage* message) {
  v1::Thinking* thinking = message->add_parts()->mutable_thinking();
  const Json& said = part["thinking"];
  if (said.is_string()) thinking->set_text(said.get<std::string>());
  for (size_t i = 0; said.is_array() && i < said.size(); ++i) {
    thinking->mutable_text()->append(said[i]["text"].get_ref<const std::string&>());
  }
  const Json* closed = Find(part, "closed");
  thinking->set_open(closed != nullptr && !closed->get<bool>());
}

// How parts are joined is the chat format's business. No parts are an empty text.
void SetContent(const PastMessage& turn, v1::ChatMessage* message) {
  const bool has_thought = turn.reasoning != nullptr && *turn.reasoning != "";
  if (has_thought) message->add_parts()->mutable_thinking()->set_text(turn.reasoning->get<std::string>());
  if (turn.content == nullptr) return;
  const Json& content = *turn.content;
  if (content.is_string() && has_thought) return message->add_parts()->set_text(content.get<std::string>());
  if (content.is_string()) return message->set_content(content.get<std::string>());
  for (const Json& part : content) {
    if (Find(part, "thinking") != nullptr) {
      AddThinking(part, message);
    } else {
      message->add_parts()->set_text(part["text"].get<std::string>());
    }
  }
  if (message->parts().empty()) message->set_content("");
}

}  // namespace

v1::Role RoleOfName(std::string_view name) {
  if (name == "user") return v1::ROLE_USER;
  if (name == "assistant") return v1::ROLE_ASSISTANT;
  if (name == "tool") return v1::ROLE_TOOL;
  return v1::ROLE_SYSTEM;  // or developer
}

// ---- messages -----------------------------------------------------------------------------------

ChatBuilder::ChatBuilder(v1::Chat* chat, FieldNames* names)
    : chat_(chat), names_(names), list_(names->NameOf(kMessages)) {}

void ChatBuilder::AddMessage(const PastMessage& turn, const std::string& field) {
  // Where the n-th message is the n-th of the body's list, the table knows its name.
  const int index = chat_->messages_size();
  if (field != FieldElement(list_, index)) names_->Rename(FieldElement(kMessages, index), field);
  v1::ChatMessage& message = *chat_->add_messages();
  message.set_role(turn.role);
  SetContent(turn, &message);
  if (turn.reasoning != nullptr) {
    names_->Rename(FieldElement(kMessages, index) + ".thinking",
                   field + "." + std::string(turn.reasoning_key));
  }
  if (turn.tool_call_id != nullptr) {
    message.set_tool_call_id(MistralCallId(turn.tool_call_id->get<std::string>()));
  }
  if (turn.tool_name != nullptr) message.set_name(turn.tool_name->get<std::string>());
  message.set_prefix(turn.prefix);
  caller_ = &message;
}

void ChatBuilder::AddCall(const PastCall& call, const std::string& field) {
  if (caller_ == nullptr) AddMessage({.role = v1::ROLE_ASSISTANT}, field);
  v1::ToolCall* proto = caller_->add_tool_calls();
  proto->set_id(MistralCallId(call.id));
  proto->set_name(call.name.get<std::string>());
  if (call.arguments == nullptr) return;
  const bool is_text = call.arguments->is_string();
  proto->set_arguments_json(is_text ? call.arguments->get<std::string>() : PrintJson(*call.arguments));
}

std::optional<ApiError> ChatBuilder::ContinueLastMessage(const std::string& field) {
  v1::ChatMessage& last = *chat_->mutable_messages(chat_->messages_size() - 1);
  if (last.role() != v1::ROLE_ASSISTANT) {
    return FieldFault(field, "is true, but the last message is not from the assistant");
  }
  last.set_prefix(true);
  return std::nullopt;
}

// ---- tools --------------------------------------------------------------------------------------

void ChatBuilder::AddTool(const ToolFunction& tool) {
  v1::Tool* proto = chat_->add_tools();
  proto->set_name(tool.name.get<std::string>());
  if (tool.description != nullptr) proto->set_description(tool.description->get<std::string>());
  if (tool.parameters != nullptr) proto->set_parameters_json(PrintJson(*tool.parameters));
  if (tool.strict != nullptr) proto->set_strict(tool.strict->get<bool>());
}

std::optional<ApiError> ChatBuilder::ChooseTools(std::string_view mode, const std::string& field) {
  // Where nothing can be called, these two are what is done anyway.
  const bool has_tools = !chat_->tools().empty();
  if (mode == "none") return has_tools ? Choose(v1::TOOL_CHOICE_MODE_NONE, "", field) : std::nullopt;
  if (mode == "auto") return has_tools ? Choose(v1::TOOL_CHOICE_MODE_AUTO, "", field) : std::nullopt;
  return Choose(v1::TOOL_CHOICE_MODE_REQUIRED, "", field);
}

std::optional<ApiError> ChatBuilder::ChooseTool(const std::string& name, const std::string& field) {
  return Choose(v1::TOOL_CHOICE_MODE_NAMED, name, field);
}

void ChatBuilder::AllowTools(const std::vector<std::string>& names, const std::string& field) {
  v1::ToolChoice& choice = *chat_->mutable_tool_choice();
  choice.mutable_allowed()->Add(names.begin(), names.end());
  names_->Rename("chat.tool_choice.allowed", field);
}

std::optional<ApiError> ChatBuilder::Choose(v1::ToolChoiceMode mode, const std::string& name,
                                            const std::string& field) {
  if (chat_->tools().empty()) return FieldFault(field, "asks for a call, but there are no tools");
  chat_->mutable_tool_choice()->set_mode(mode);
  chat_->mutable_tool_choice()->set_name(name);
  return std::nullopt;
}

// ---- the whole ----------------------------------------------------------------------------------

namespace {

const Json& FunctionOf(const Json& tool, const std::string& function_key) {
  return function_key.empty() ? tool : tool[function_key];
}

// What a table cannot say of a choice: which key goes with which type.
std::optional<ApiError> ChooseByObject(const Json& choice, const std::string& function_key,
                                       ChatBuilder* chat) {
  constexpr char kAllowedTools[] = "allowed_tools";
  const bool is_list = TextOf(choice, "type") == kAllowedTools;
  // An object of the type has it in a field of that name, but where functions have no field of their own.
  const std::string key = function_key.empty() ? "" : is_list ? kAllowedTools : function_key;
  const std::string field = key.empty() ? "tool_choice" : "tool_choice." + key;
  const Json* chosen = key.empty() ? &choice : Find(choice, key);
  if (chosen == nullptr) return FieldFault(field, "is missing");
  for (const char* const member : {is_list ? "mode" : "name", is_list ? "tools" : "name"}) {
    if (Find(*chosen, member) == nullptr) return FieldFault(field + "." + member, "is missing");
  }
  if (!is_list) return chat->ChooseTool(TextOf(*chosen, "name"), "tool_choice");
  if (auto fault = chat->ChooseTools(TextOf(*chosen, "mode"), "tool_choice")) return fault;
  std::vector<std::string> names;
  for (const Json& tool : (*chosen)["tools"]) names.push_back(TextOf(FunctionOf(tool, function_key), "name"));
  chat->AllowTools(names, field + ".tools");
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> AddTools(const Json& body, const std::string& function_key, ChatBuilder* chat) {
  if (const Json* tools = Find(body, "tools")) {
    for (const Json& tool : *tools) {
      const Json& function = FunctionOf(tool, function_key);
      chat->AddTool({.name = function["name"],
                     .description = Find(function, "description"),
                     .parameters = Find(function, "parameters"),
                     .strict = Find(function, "strict")});
    }
  }
  if (const Json* parallel = Find(body, "parallel_tool_calls")) {
    chat->SetParallelCalls(parallel->get<bool>());
  }
  const Json* choice = Find(body, "tool_choice");
  if (choice == nullptr) return std::nullopt;
  if (choice->is_string()) return chat->ChooseTools(choice->get_ref<const std::string&>(), "tool_choice");
  return ChooseByObject(*choice, function_key, chat);
}

namespace {

// mistral-common's, of an answer that has to be JSON and no more is said.
constexpr char kAnyJson[] = R"({"anyOf": [{"type": "object"}, {"type": "array"}]})";

// Some models read in their prompt what their answer is held to.
void ShowSchema(const v1::Constraint& constraint, v1::Chat* chat, FieldNames* names) {
  if (constraint.json_object()) chat->set_answer_schema_json(kAnyJson);
  if (!constraint.json_schema().starts_with('{')) return;
  chat->set_answer_schema_json(constraint.json_schema());
  names->Rename("chat.answer_schema_json", names->NameOf("constraint.json_schema"));
}

}  // namespace

void FinishChat(const std::string& conversation, v1::GenerateRequest* call, FieldNames* names,
                AnswerOptions* answer) {
  names->Rename("prompt", conversation);
  names->Rename("chat", conversation);
  const v1::Chat& chat = call->chat();
  if (MustCallTools(chat)) {
    call->clear_constraint();
    names->Rename("constraint", "tool_choice");
  }
  ShowSchema(call->constraint(), call->mutable_chat(), names);
  answer->tools = chat.tools_size() > 0 && chat.tool_choice().mode() != v1::TOOL_CHOICE_MODE_NONE;
  answer->only_tool_calls = MustCallTools(chat);
  answer->one_tool_call = chat.has_parallel_tool_calls() && !chat.parallel_tool_calls();
  if (answer->tools) answer->call_id_seed = CallIdSeed(*call, answer->id);
}

}  // namespace tramontane
