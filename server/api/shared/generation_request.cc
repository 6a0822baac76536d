#include "server/api/shared/generation_request.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string>
#include <utility>

#include "server/api/shared/output_constraint.h"

namespace tramontane {

// ---- bodies -------------------------------------------------------------------------------------

std::optional<ApiError> ParseBody(std::string_view body, const Shape& shape, const RequestContext& context,
                                  Json* json, std::vector<std::string>* ignored) {
  StatusOr<Json> parsed = ParseJson(body);
  if (!parsed.ok()) return BadRequest("", "the body: " + parsed.status().message());
  if (!parsed->is_object()) return BadRequest("", "the body is not a JSON object");
  if (auto fault = FindFault(shape, *parsed, "")) return FieldFault(fault->path, fault->text);
  if (context.strict_fields) {
    if (auto fault = FindUnknownKey(shape, *parsed, "")) return FieldFault(fault->path, fault->text);
  }
  *ignored = IgnoredKeys(shape, *parsed);
  *json = std::move(parsed).value();
  return std::nullopt;
}

std::optional<ApiError> ParseGeneration(std::string_view body, const Shape& shape,
                                        const RequestContext& context, Json* json,
                                        GenerationRequest* request) {
  if (auto fault = ParseBody(body, shape, context, json, &request->ignored)) return fault;
  request->names.emplace_back(shape);
  v1::GenerateRequest& call = request->calls.emplace_back();
  for (const Field& field : shape.fields) {
    if (field.apply == nullptr) continue;
    if (const Json* value = Find(*json, field.name)) field.apply(*value, &call);
  }
  AnswerOptions& answer = request->answer;
  answer.id = context.id;
  call.set_request_id(answer.id);
  answer.created_s = context.created_s;
  answer.system_fingerprint = context.system_fingerprint;
  answer.model = TextOf(*json, "model");
  if (!context.any_model) call.set_model(answer.model);
  answer.stream = IsTrue(*json, "stream");
  answer.token_ids = call.output().token_ids();
  if (!answer.token_ids) call.mutable_output()->set_token_ids(false);
  return std::nullopt;
}

namespace {

// JSON's keys are strings: {"15": -100}.
std::optional<ApiError> ConvertLogitBias(const Json& json, v1::GenerateRequest* request) {
  const Json* bias = Find(json, "logit_bias");
  if (bias == nullptr) return std::nullopt;
  auto& proto = *request->mutable_sampling()->mutable_logit_bias();
  for (const auto& [key, value] : bias->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0) {
      return FieldFault("logit_bias", "has the key " + JsonString(ShownText(key)) + ", which is no token id");
    }
    proto[id] = value.get<float>();
  }
  return std::nullopt;
}

void ConvertMaxTokens(const Json& json, GenerationRequest* request) {
  for (const char* name : {"max_completion_tokens", "max_tokens"}) {
    const Json* value = Find(json, name);
    if (value == nullptr) continue;
    request->calls[0].mutable_stopping()->set_max_tokens(value->get<int64_t>());
    request->names[0].Rename("stopping.max_tokens", name);
    return;
  }
}

}  // namespace

std::optional<ApiError> ParseChoicesGeneration(std::string_view body, const Shape& shape,
                                               const RequestContext& context, Json* json,
                                               GenerationRequest* request) {
  if (auto fault = ParseGeneration(body, shape, context, json, request)) return fault;
  v1::GenerateRequest& call = request->calls[0];
  FieldNames& names = request->names[0];
  AnswerOptions& answer = request->answer;
  if (const Json* id = Find(*json, "request_id")) answer.id = id->get<std::string>();
  call.set_request_id(answer.id);
  if (const Json* options = Find(*json, "stream_options")) {
    answer.usage_chunk = IsTrue(*options, "include_usage");
    answer.usage_in_every_chunk = IsTrue(*options, "continuous_usage_stats");
  }
  if (call.has_choices()) answer.choices = call.choices();
  answer.tokens_as_ids = IsTrue(*json, "return_tokens_as_token_ids");
  if (call.output().has_prompt_logprobs()) {
    if (answer.stream) return FieldFault("prompt_logprobs", "cannot be had with stream");
    answer.prompt_logprobs = call.output().prompt_logprobs();
  }
  ConvertMaxTokens(*json, request);
  if (Find(*json, "seed") == nullptr) names.Rename("sampling.seed", "random_seed");
  if (auto fault = ConvertLogitBias(*json, &call)) return fault;
  return ConvertConstraint(*json, &call, &names);
}

// ---- names --------------------------------------------------------------------------------------

namespace {

// In OpenAI's chats, what a tool or a call says of its function is in an object of its own.
std::string WithFunction(std::string name) {
  if (name == "tool_choice.name") return "tool_choice.function.name";
  const size_t list = name.starts_with("tools[") ? 0 : name.find("tool_calls[");
  const size_t entry = list != std::string::npos ? name.find(']', list) : list;
  if (entry == std::string::npos) return name;
  const std::string inside = name.substr(entry + 1);
  for (const std::string_view key : {".name", ".description", ".parameters", ".arguments"}) {
    if (LiesInField(inside, key)) return name.insert(entry + 1, ".function");
  }
  return name;
}

}  // namespace

std::string FieldNames::NameOf(const std::string& path) const {
  std::string_view outer, name;  // the closest around `path`, and what it is called
  const auto consider = [&](std::string_view other_path, std::string_view other_name) {
    if (other_path.size() <= outer.size() || !LiesInField(path, other_path)) return;
    outer = other_path;
    name = other_name;
  };
  for (const auto& [renamed_path, new_name] : renamed_) consider(renamed_path, new_name);
  for (const Field& field : body_->fields) consider(field.path, field.name);
  if (outer.empty()) return path;
  std::string renamed = std::string(name) + path.substr(outer.size());
  const bool is_chat = std::any_of(body_->fields.begin(), body_->fields.end(),
                                   [](const Field& field) { return field.path == "chat.messages"; });
  return is_chat ? WithFunction(std::move(renamed)) : renamed;
}

ApiError FieldNames::Explain(const RpcError& error) const {
  RpcError renamed = error;
  renamed.field = NameOf(error.field);
  return ToApiError(renamed);
}

}  // namespace tramontane
