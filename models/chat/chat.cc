#include "models/chat/chat.h"

#include <algorithm>
#include <utility>

#include "kernels/core/utf8.h"
#include "models/chat/chat_check.h"
#include "models/chat/chat_format.h"
#include "models/chat/chat_prompt.h"
#include "models/chat/chat_turns.h"
#include "models/tokenizer/python_json.h"

namespace tramontane {
namespace {

Status CheckContinuation(std::span<const ChatMessage> messages) {
  if (messages.empty() || messages.back().role != ChatRole::kAssistant) {
    return ChatFault("continue_final_message", "the last message is not from the assistant");
  }
  if (!messages.back().prefix) return Status::Ok();
  return ChatFault("continue_final_message", "the last message has prefix set; one of the two is enough");
}

// The effort asked for, or the default of the vocabulary's file; "" where it knows none.
StatusOr<std::string> ReasoningEffortOf(const ModelSettings* settings, const ChatOptions& options) {
  const bool has_efforts = settings != nullptr && settings->reasoning_effort;
  if (!options.reasoning_effort) return has_efforts ? settings->reasoning_effort->default_value : "";
  if (!has_efforts) return ChatFault("reasoning_effort", "the model has no such setting");
  std::string known;
  for (const std::string& value : settings->reasoning_effort->values) {
    if (value == *options.reasoning_effort) return value;
    known += (known.empty() ? "" : ", ") + value;
  }
  return ChatFault("reasoning_effort", Quoted(*options.reasoning_effort) + " is not one of " + known);
}

// The schema as Python prints it; "" where the model is not shown one.
StatusOr<std::string> AnswerSchemaOf(const ModelSettings* settings, const ChatOptions& options) {
  std::string json;
  if (settings == nullptr || !settings->json_schema || !options.answer_schema_json) return json;
  const StatusOr<JsonValue> schema = ParsePythonJson(*options.answer_schema_json);
  if (!schema.ok()) return ChatFault("answer_schema_json", schema.status().message());
  if (schema->kind != JsonValue::Kind::kObject) return ChatFault("answer_schema_json", "not a JSON object");
  AppendPythonJson(*schema, &json);
  return json;
}

// The json.dumps of mistral-common's model settings, by name; "" for none.
StatusOr<std::string> SettingsJson(const ChatFormat& format, const Tokenizer& tokenizer,
                                   const ChatOptions& options) {
  const ModelSettings* settings = format.model_settings ? tokenizer.model_settings() : nullptr;
  if (format.model_settings && settings == nullptr) {
    return FailedPrecondition(std::string("chat format ") + TokenizerVersionName(format.version) +
                              " needs model_settings_builder in the tokenizer's file");
  }
  TM_ASSIGN_OR_RETURN(const std::string schema, AnswerSchemaOf(settings, options));
  TM_ASSIGN_OR_RETURN(const std::string effort, ReasoningEffortOf(settings, options));
  std::string json;
  if (!schema.empty()) json += "{\"json_schema\": " + schema;
  if (!effort.empty()) {
    json += json.empty() ? "{" : ", ";
    json += "\"reasoning_effort\": \"" + effort + "\"";
  }
  return json.empty() ? json : json + "}";
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
  const ChatFormat& format = ChatFormatOf(options.format.value_or(tokenizer.version()));
  std::vector<ChatMessage> continued;
  if (options.continue_final_message) {
    TM_RETURN_IF_ERROR(CheckContinuation(messages));
    continued.assign(messages.begin(), messages.end());
    continued.back().prefix = true;
    messages = continued;
  }
  const std::vector<SaidMessage> said = WhatIsSaid(messages);
  TM_RETURN_IF_ERROR(CheckMessages(format, said));
  TM_ASSIGN_OR_RETURN(NormalizedChat chat, NormalizeChat(format, said, tools));
  TM_ASSIGN_OR_RETURN(chat.settings, SettingsJson(format, tokenizer, options));
  ChatPrompt prompt(tokenizer);
  TM_RETURN_IF_ERROR(prompt.Begin());
  TM_RETURN_IF_ERROR(format.render(format, chat, &prompt));
  return prompt.Finish();
}

}  // namespace tramontane
