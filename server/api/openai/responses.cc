#include "server/api/openai/responses.h"

#include <cstddef>
#include <initializer_list>
#include <string>
#include <utility>

#include "kernels/core/status.h"
#include "server/answers/must_call.h"
#include "server/api/openai/request_shapes.h"
#include "server/api/shared/chat_builder.h"
#include "server/api/shared/output_constraint.h"
#include "server/base/text.h"

namespace tramontane {
namespace {

// ---- the conversation ---------------------------------------------------------------------------

std::optional<ApiError> FindMissing(const Json& item, std::initializer_list<const char*> keys,
                                    const std::string& field) {
  for (const char* key : keys) {
    if (Find(item, key) == nullptr) return FieldFault(field + "." + key, "is missing");
  }
  return std::nullopt;
}

// What the assistant said it had thought, until the item that it thought that for has come.
struct PendingThought {
  Json text = "";

  const Json* Take(Json* taken) {
    *taken = std::exchange(text, "");
    return taken;
  }
};

// As our answers have it. Another server's may be a summary, or encrypted, which says nothing to a model.
void AddThought(const Json& item, PendingThought* thought) {
  const Json* content = Find(item, "content");
  if (content == nullptr || !content->is_array()) return;
  for (const Json& part : *content) {
    const Json* text = Find(part, "text");
    if (text != nullptr && text->is_string()) {
      thought->text.get_ref<std::string&>() += text->get_ref<const std::string&>();
    }
  }
}

std::optional<ApiError> AddMessageItem(const Json& item, const std::string& field, PendingThought* pending,
                                       ChatBuilder* chat) {
  if (auto fault = FindMissing(item, {"role", "content"}, field)) return fault;
  const Json& content = item["content"];
  if (auto fault = FindFault(MessageTextShape(), content, field + ".content")) {
    return FieldFault(fault->path, fault->text);
  }
  const v1::Role role = RoleOfName(item["role"].get_ref<const std::string&>());
  Json thought;
  pending->Take(&thought);
  chat->AddMessage(
      {.role = role, .content = &content, .reasoning = role == v1::ROLE_ASSISTANT ? &thought : nullptr},
      field);
  return std::nullopt;
}

std::optional<ApiError> AddCallItem(const Json& item, const std::string& field, PendingThought* pending,
                                    ChatBuilder* chat) {
  if (auto fault = FindMissing(item, {"call_id", "name", "arguments"}, field)) return fault;
  Json thought;
  if (*pending->Take(&thought) != "") {
    chat->AddMessage({.role = v1::ROLE_ASSISTANT, .reasoning = &thought}, field);
  }
  chat->AddCall({.id = TextOf(item, "call_id"), .name = item["name"], .arguments = &item["arguments"]},
                field);
  return std::nullopt;
}

std::optional<ApiError> AddCallOutput(const Json& item, const std::string& field, ChatBuilder* chat) {
  if (auto fault = FindMissing(item, {"call_id", "output"}, field)) return fault;
  chat->AddMessage({.role = v1::ROLE_TOOL, .content = &item["output"], .tool_call_id = &item["call_id"]},
                   field);
  return std::nullopt;
}

// Items are messages, one each, but for calls in a row, which are one, and what was thought before either.
std::optional<ApiError> AddItem(const Json& item, const std::string& field, PendingThought* pending,
                                ChatBuilder* chat) {
  const std::string type = Find(item, "type") == nullptr ? "message" : TextOf(item, "type");
  if (type == "function_call") return AddCallItem(item, field, pending, chat);
  std::optional<ApiError> fault;
  if (type == "message") fault = AddMessageItem(item, field, pending, chat);
  if (type == "function_call_output") fault = AddCallOutput(item, field, chat);
  if (type == "reasoning") AddThought(item, pending);
  chat->EndCalls();
  return fault;
}

std::optional<ApiError> AddInput(const Json& json, ChatBuilder* chat) {
  if (const Json* instructions = Find(json, "instructions")) {
    chat->AddMessage({.role = v1::ROLE_SYSTEM, .content = instructions}, "instructions");
  }
  const Json& input = json["input"];
  if (input.is_string()) chat->AddMessage({.role = v1::ROLE_USER, .content = &input}, "input");
  chat->EndCalls();
  PendingThought pending;
  for (size_t i = 0; input.is_array() && i < input.size(); ++i) {
    if (auto fault = AddItem(input[i], FieldElement("input", i), &pending, chat)) return fault;
  }
  return std::nullopt;
}

// ---- the answer ---------------------------------------------------------------------------------

std::optional<ApiError> ConvertTextFormat(const Json& json, v1::GenerateRequest* call, FieldNames* names) {
  const Json* text = Find(json, "text");
  const Json* format = text == nullptr ? nullptr : Find(*text, "format");
  if (format == nullptr) return std::nullopt;
  constexpr char kSchemaField[] = "text.format.schema";
  const bool has_schema = (*format)["type"] == "json_schema";
  const Json* schema = has_schema ? Find(*format, "schema") : nullptr;
  if (has_schema && schema == nullptr) return FieldFault(kSchemaField, "is missing");
  OutputDemands demands;
  demands.AddFormat(*format, "text.format", schema, kSchemaField);
  return demands.PutInto(call, names);
}

// What the answer says of the request, with the defaults of what was left out.
Json Repeated(const Json& json) {
  const auto given = [&json](const char* key, const Json& otherwise) {
    const Json* value = Find(json, key);
    return value == nullptr ? otherwise : *value;
  };
  Json repeated = Json::object();
  for (const char* key : {"instructions", "max_output_tokens"}) repeated[key] = given(key, nullptr);
  repeated["metadata"] = given("metadata", Json::object());
  repeated["parallel_tool_calls"] = given("parallel_tool_calls", true);
  repeated["previous_response_id"] = nullptr;
  repeated["store"] = false;
  for (const char* key : {"temperature", "top_p"}) repeated[key] = given(key, nullptr);
  repeated["text"] = given("text", {{"format", {{"type", "text"}}}});
  repeated["tool_choice"] = given("tool_choice", "auto");
  repeated["tools"] = given("tools", Json::array());
  repeated["truncation"] = given("truncation", "disabled");
  return repeated;
}

}  // namespace

std::optional<ApiError> ParseResponses(std::string_view body, const RequestContext& context,
                                       GenerationRequest* request) {
  Json json;
  if (auto fault = ParseGeneration(body, ShapesOf(context).responses, context, &json, request)) return fault;
  v1::GenerateRequest& call = request->calls[0];
  FieldNames& names = request->names[0];
  ChatBuilder chat(call.mutable_chat(), &names);
  if (auto fault = AddInput(json, &chat)) return fault;
  if (auto fault = AddTools(json, "", &chat)) return fault;
  const Json* reasoning = Find(json, "reasoning");
  if (const Json* effort = reasoning == nullptr ? nullptr : Find(*reasoning, "effort")) {
    chat.SetReasoningEffort(effort->get<std::string>());
    names.Rename("chat.reasoning_effort", "reasoning.effort");
  }
  if (const Json* budget = Find(json, "thinking_token_budget")) {
    chat.SetThinkingBudget(budget->get<int32_t>());
  }
  if (!MustCallTools(call.chat())) {  // else there will be no text that a format could hold
    if (auto fault = ConvertTextFormat(json, &call, &names)) return fault;
  }
  FinishChat("input", &call, &names, &request->answer);
  request->answer.repeated = Repeated(json);
  return std::nullopt;
}

// ---- the endpoint -------------------------------------------------------------------------------

void AnswerResponses(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  AnswerGeneration(context, exchange, ParseResponses, MakeResponsesWriter);
}

}  // namespace tramontane
