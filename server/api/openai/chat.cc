#include "server/api/openai/chat.h"

#include <cstddef>
#include <string>
#include <utility>

#include "kernels/core/status.h"
#include "server/api/openai/request_shapes.h"
#include "server/api/shared/chat_builder.h"
#include "server/api/shared/gateway_context.h"
#include "server/base/text.h"
#include "server/call/inference_client.h"

namespace tramontane {
namespace {

// Said in front of the conversation by Mistral's own servers too.
constexpr char kSafetySentence[] =
    "Always assist with care, respect, and truth. Respond with utmost utility yet securely. Avoid harmful, "
    "unethical, prejudiced, or negative content. Ensure replies promote fairness and positivity.";

// ---- chats --------------------------------------------------------------------------------------

void AddCall(const Json& json, const std::string& field, ChatBuilder* chat) {
  const Json& function = json["function"];
  chat->AddCall(
      {.id = TextOf(json, "id"), .name = function["name"], .arguments = Find(function, "arguments")}, field);
}

// What a table cannot say of a part: which key goes with which type.
std::optional<ApiError> CheckParts(const Json& content, const std::string& field) {
  for (size_t i = 0; content.is_array() && i < content.size(); ++i) {
    const bool is_thinking = content[i]["type"] == "thinking";
    const char* wanted = is_thinking ? "thinking" : "text";
    const char* other = is_thinking ? "text" : "thinking";
    if (Find(content[i], wanted) == nullptr)
      return FieldFault(FieldElement(field, i) + "." + wanted, "is missing");
    if (Find(content[i], other) == nullptr) continue;
    return FieldFault(FieldElement(field, i) + "." + other,
                      std::string("does not go with the type \"") + (is_thinking ? "thinking\"" : "text\""));
  }
  return std::nullopt;
}

// Two names of one thing.
std::optional<ApiError> FindReasoning(const Json& message, const std::string& field, const Json** reasoning) {
  *reasoning = Find(message, "reasoning_content");
  const Json* same = Find(message, "reasoning");
  if (*reasoning == nullptr) *reasoning = same;
  if (same == nullptr || *same == **reasoning) return std::nullopt;
  return FieldFault(field + ".reasoning", "is not what reasoning_content says; give one of the two");
}

std::optional<ApiError> AddMessage(const Json& json, const std::string& field, ChatBuilder* chat) {
  const v1::Role role = RoleOfName(json["role"].get_ref<const std::string&>());
  const Json* content = Find(json, "content");
  if (content == nullptr && role != v1::ROLE_ASSISTANT) {
    return FieldFault(field + ".content", "is missing; only an assistant's message goes without it");
  }
  if (content != nullptr) {
    if (auto fault = CheckParts(*content, field + ".content")) return fault;
  }
  const Json* reasoning = nullptr;
  if (auto fault = FindReasoning(json, field, &reasoning)) return fault;
  chat->AddMessage({.role = role,
                    .content = content,
                    .reasoning = reasoning,
                    .reasoning_key = reasoning == Find(json, "reasoning") ? "reasoning" : "reasoning_content",
                    .tool_call_id = Find(json, "tool_call_id"),
                    .tool_name = role == v1::ROLE_TOOL ? Find(json, "name") : nullptr,
                    .prefix = IsTrue(json, "prefix")},
                   field);
  if (const Json* calls = Find(json, "tool_calls")) {
    for (const Json& call : *calls) AddCall(call, field, chat);
  }
  return std::nullopt;
}

std::optional<ApiError> AddChat(const Json& json, ChatBuilder* chat) {
  const Json& messages = json["messages"];
  for (size_t i = 0; i < messages.size(); ++i) {
    if (auto fault = AddMessage(messages[i], FieldElement("messages", i), chat)) return fault;
  }
  if (IsTrue(json, "continue_final_message")) {
    if (auto fault = chat->ContinueLastMessage("continue_final_message")) return fault;
  }
  if (const Json* add = Find(json, "add_generation_prompt")) chat->SetGenerationPrompt(add->get<bool>());
  if (const Json* arguments = Find(json, "chat_template_kwargs")) {
    chat->SetTemplateArguments(PrintJson(*arguments));
  }
  if (const Json* effort = Find(json, "reasoning_effort")) {
    chat->SetReasoningEffort(effort->get<std::string>());
  }
  if (const Json* budget = Find(json, "thinking_token_budget")) {
    chat->SetThinkingBudget(budget->get<int32_t>());
  }
  return AddTools(json, "function", chat);
}

// A chat asks with a flag and a number.
std::optional<ApiError> ConvertLogprobs(const Json& json, GenerationRequest* request) {
  const Json* top = Find(json, "top_logprobs");
  if (!IsTrue(json, "logprobs")) {
    if (top == nullptr || *top == 0) return std::nullopt;
    return FieldFault("top_logprobs", "is " + PrintJson(*top) + " although logprobs is not true");
  }
  request->answer.logprobs = top == nullptr ? 0 : top->get<int32_t>();
  request->calls[0].mutable_output()->set_logprobs(request->answer.logprobs);
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> ConvertChat(const Json& json, v1::Chat* chat, FieldNames* names) {
  ChatBuilder builder(chat, names);
  return AddChat(json, &builder);
}

std::optional<ApiError> ParseChatCompletion(std::string_view body, const RequestContext& context,
                                            GenerationRequest* request) {
  Json json;
  if (auto fault = ParseChoicesGeneration(body, ShapesOf(context).chat, context, &json, request))
    return fault;
  v1::GenerateRequest& call = request->calls[0];
  FieldNames& names = request->names[0];
  ChatBuilder chat(call.mutable_chat(), &names);
  if (IsTrue(json, "safe_prompt")) {
    const Json safety = kSafetySentence;
    chat.AddMessage({.role = v1::ROLE_SYSTEM, .content = &safety}, "safe_prompt");
  }
  if (auto fault = AddChat(json, &chat)) return fault;
  if (auto fault = ConvertLogprobs(json, request)) return fault;
  FinishChat("messages", &call, &names, &request->answer);
  return std::nullopt;
}

// ---- endpoints ----------------------------------------------------------------------------------

void AnswerChatCompletions(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  AnswerGeneration(context, exchange, ParseChatCompletion, MakeChatWriter);
}

void AnswerRenderChat(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  GenerationRequest parsed;
  if (auto fault =
          ParseChatCompletion(exchange->request().body, RequestContextOf(context, *exchange), &parsed)) {
    return exchange->Fail(*fault);
  }
  v1::RenderChatRequest request;
  request.set_model(parsed.calls[0].model());
  *request.mutable_chat() = parsed.calls[0].chat();
  context.client.Ask(
      CallerOf(*exchange), std::move(request),
      [exchange, parsed = std::move(parsed)](const RpcError& error, const v1::RenderChatResponse& rendered) {
        if (!error.ok()) return exchange->Fail(parsed.names[0].Explain(error));
        RespondWithText(*exchange, RenderedJson(parsed.calls[0], rendered.token_ids(), &rendered.text()),
                        parsed.ignored);
      });
}

}  // namespace tramontane
