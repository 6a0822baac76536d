#include "models/chat/mistral_chat.h"

#include <utility>
#include <vector>

#include "models/chat/chat_check.h"
#include "models/chat/chat_prompt.h"
#include "models/chat/chat_turns.h"
#include "models/chat/mistral_format.h"
#include "models/tokenizer/python_json.h"

namespace tramontane {
namespace {

// The effort asked for, or the default of the vocabulary's file; "" where it knows none.
StatusOr<std::string> ReasoningEffortOf(const ModelSettings* settings, const ChatOptions& options) {
  const bool has_efforts = settings != nullptr && settings->reasoning_effort;
  if (!options.reasoning_effort) return has_efforts ? settings->reasoning_effort->default_value : "";
  if (!has_efforts) {
    // Where a file could have efforts and has none, none is what is done anyway.
    if (settings != nullptr && *options.reasoning_effort == "none") return std::string();
    return ChatFault("reasoning_effort", "the model has no such setting");
  }
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
// `settings`: null where the format has no place for them, or nobody says them.
StatusOr<std::string> SettingsJson(const MistralFormat& format, const ModelSettings* settings,
                                   const ChatOptions& options) {
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

MistralChatFormat::MistralChatFormat(const Tokenizer& tokenizer, TokenizerVersion version, std::string why,
                                     std::optional<ModelSettings> settings)
    : ChatFormat(TokenizerVersionName(version), std::move(why), MistralAnswerSyntax(tokenizer, version)),
      tokenizer_(tokenizer),
      version_(version),
      settings_(std::move(settings)) {}

StatusOr<RenderedChat> MistralChatFormat::RenderAnswered(std::span<const ChatMessage> messages,
                                                         std::span<const ToolDefinition> tools,
                                                         const ChatOptions& options) const {
  const MistralFormat& format = MistralFormatOf(version_);
  std::vector<ChatMessage> copy;
  TM_ASSIGN_OR_RETURN(messages, ContinuedMessages(messages, options, &copy));
  TM_RETURN_IF_ERROR(CheckNoTemplateArguments(options, name()));
  if (!keeps_thoughts()) messages = WithoutThoughts(messages, &copy);
  const std::vector<SaidMessage> said = WhatIsSaid(messages);
  TM_RETURN_IF_ERROR(CheckMessages(format, said));
  TM_ASSIGN_OR_RETURN(NormalizedChat chat, NormalizeChat(format, said, tools));
  TM_ASSIGN_OR_RETURN(chat.settings, SettingsJson(format, settings(), options));
  ChatPrompt prompt(tokenizer_);
  TM_RETURN_IF_ERROR(prompt.Begin());
  TM_RETURN_IF_ERROR(format.render(format, chat, &prompt));
  return prompt.Finish();
}

bool MistralChatFormat::keeps_thoughts() const {
  return MistralFormatOf(version_).thinking != MistralFormat::Thinking::kNowhere;
}

const ModelSettings* MistralChatFormat::settings() const {
  if (!MistralFormatOf(version_).model_settings) return nullptr;
  return settings_ ? &*settings_ : tokenizer_.model_settings();
}

}  // namespace tramontane
