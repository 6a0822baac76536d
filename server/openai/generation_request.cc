#include "server/openai/generation_request.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <utility>

#include "server/openai/tool_calls.h"

namespace tramontane {
namespace {

constexpr int64_t kDefaultCompletionTokens = 16;  // OpenAI's

bool IsTrue(const Json& json, const std::string& key) {
  const Json* value = Find(json, key);
  return value != nullptr && value->get<bool>();
}

std::string TextOf(const Json& json, const std::string& key) {
  const Json* value = Find(json, key);
  return value == nullptr ? "" : value->get<std::string>();
}

ApiError Fault(const std::string& field, const std::string& text) {
  return BadRequest(field, field + ": " + text);
}

std::string Indexed(const std::string& path, size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

}  // namespace

// ---- bodies -------------------------------------------------------------------------------------

void SetContent(const Json& content, v1::ChatMessage* message) {
  if (content.is_string()) return message->set_content(content.get<std::string>());
  std::string text;
  for (const Json& part : content) {
    const std::string& paragraph = part["text"].get_ref<const std::string&>();
    if (paragraph.empty()) continue;
    if (!text.empty()) text += "\n\n";
    text += paragraph;
  }
  message->set_content(std::move(text));
  message->set_in_parts(!content.empty());
}

std::optional<ApiError> ParseBody(std::string_view body, const Shape& shape, const RequestContext& context,
                                  Json* json, std::vector<std::string>* ignored) {
  StatusOr<Json> parsed = ParseJson(body);
  if (!parsed.ok()) return BadRequest("", "the body: " + parsed.status().message());
  if (!parsed->is_object()) return BadRequest("", "the body is not a JSON object");
  if (auto fault = FindFault(shape, *parsed, "")) return Fault(fault->path, fault->text);
  if (context.strict_fields) {
    if (auto fault = FindUnknownKey(shape, *parsed, "")) return Fault(fault->path, fault->text);
  }
  *ignored = IgnoredKeys(shape, *parsed);
  *json = std::move(parsed).value();
  return std::nullopt;
}

void ApplyFields(const Shape& shape, const Json& json, v1::GenerateRequest* request) {
  for (const Field& field : shape.fields) {
    if (field.apply == nullptr) continue;
    if (const Json* value = Find(json, field.name)) field.apply(*value, request);
  }
}

namespace {

constexpr char kSafetySentence[] =
    "Always assist with care, respect, and truth. Respond with utmost utility yet securely. Avoid harmful, "
    "unethical, prejudiced, or negative content. Ensure replies promote fairness and positivity.";

// What every request that generates has. `calls[0]` holds what its rows say; the prompts are not in it yet.
std::optional<ApiError> ParseGeneration(std::string_view body, const Shape& shape,
                                        const RequestContext& context, Json* json,
                                        GenerationRequest* request);
std::optional<ApiError> ConvertLogitBias(const Json& json, v1::GenerateRequest* request);
std::optional<ApiError> ConvertLogprobs(const Json& json, GenerationRequest* request);
std::optional<ApiError> ConvertPrompts(const Json& json, GenerationRequest* request);
void PutSafetyFirst(v1::Chat* chat, FieldNames* names);

}  // namespace

// ---- /v1/chat/completions -----------------------------------------------------------------------

std::optional<ApiError> ParseChatCompletion(std::string_view body, const RequestContext& context,
                                            GenerationRequest* request) {
  Json json;
  if (auto fault = ParseGeneration(body, context.shapes->chat, context, &json, request)) return fault;
  v1::GenerateRequest& call = request->calls[0];
  if (auto fault = ConvertChat(json, call.mutable_chat())) return fault;
  if (IsTrue(json, "safe_prompt")) PutSafetyFirst(call.mutable_chat(), &request->names[0]);
  if (auto fault = ConvertLogprobs(json, request)) return fault;
  for (const char* name : {"max_completion_tokens", "max_tokens"}) {
    const Json* value = Find(json, name);
    if (value == nullptr) continue;
    call.mutable_stopping()->set_max_tokens(value->get<int64_t>());
    request->names[0].Rename("stopping.max_tokens", name);
    break;
  }
  request->names[0].Rename("prompt", "messages");
  request->names[0].Rename("chat", "messages");
  if (MustCall(call.chat())) call.clear_constraint();  // there will be no text that it could hold
  SetToolAnswer(call, &request->answer);
  return std::nullopt;
}

namespace {

v1::Role RoleOf(const std::string& role) {
  if (role == "user") return v1::ROLE_USER;
  if (role == "assistant") return v1::ROLE_ASSISTANT;
  if (role == "tool") return v1::ROLE_TOOL;
  return v1::ROLE_SYSTEM;  // or developer
}

void ConvertCall(const Json& json, v1::ToolCall* call) {
  const Json& function = json["function"];
  call->set_id(MistralCallId(TextOf(json, "id")));
  call->set_name(function["name"].get<std::string>());
  if (const Json* arguments = Find(function, "arguments")) {
    call->set_arguments_json(arguments->is_string() ? arguments->get<std::string>() : PrintJson(*arguments));
  }
}

std::optional<ApiError> ConvertMessage(const Json& json, const std::string& path, v1::ChatMessage* message) {
  message->set_role(RoleOf(json["role"].get<std::string>()));
  if (const Json* calls = Find(json, "tool_calls")) {
    for (const Json& call : *calls) ConvertCall(call, message->add_tool_calls());
  }
  const Json* content = Find(json, "content");
  if (content != nullptr) {
    SetContent(*content, message);
  } else if (message->role() != v1::ROLE_ASSISTANT) {
    return Fault(path + ".content", "is missing; only an assistant's message goes without it");
  }
  if (const Json* id = Find(json, "tool_call_id")) {
    message->set_tool_call_id(MistralCallId(id->get<std::string>()));
  }
  const Json* name = Find(json, "name");
  if (name != nullptr && message->role() == v1::ROLE_TOOL) message->set_name(name->get<std::string>());
  message->set_prefix(IsTrue(json, "prefix"));
  return std::nullopt;
}

void ConvertTool(const Json& json, v1::Tool* tool) {
  const Json& function = json["function"];
  tool->set_name(function["name"].get<std::string>());
  tool->set_description(TextOf(function, "description"));
  if (const Json* parameters = Find(function, "parameters"))
    tool->set_parameters_json(PrintJson(*parameters));
}

std::optional<ApiError> ConvertToolChoice(const Json& choice, v1::Chat* chat) {
  v1::ToolChoice* proto = chat->mutable_tool_choice();
  if (choice.is_object()) {
    proto->set_mode(v1::TOOL_CHOICE_MODE_NAMED);
    proto->set_name(choice["function"]["name"].get<std::string>());
  } else if (choice == "none") {
    proto->set_mode(v1::TOOL_CHOICE_MODE_NONE);
  } else if (choice == "auto") {
    proto->set_mode(v1::TOOL_CHOICE_MODE_AUTO);
  } else {
    proto->set_mode(v1::TOOL_CHOICE_MODE_REQUIRED);
  }
  if (!chat->tools().empty()) return std::nullopt;
  if (choice != "none" && choice != "auto")
    return Fault("tool_choice", "asks for a call, but there are no tools");
  chat->clear_tool_choice();
  return std::nullopt;
}

}  // namespace

void SetToolAnswer(const v1::GenerateRequest& call, AnswerOptions* answer) {
  const v1::Chat& chat = call.chat();
  answer->tools = chat.tools_size() > 0 && chat.tool_choice().mode() != v1::TOOL_CHOICE_MODE_NONE;
  answer->only_tool_calls = MustCall(chat);
  answer->one_tool_call = chat.has_parallel_tool_calls() && !chat.parallel_tool_calls();
  if (answer->tools) answer->call_id_seed = CallIdSeed(call, answer->id);
}

bool MustCall(const v1::Chat& chat) {
  const v1::ToolChoiceMode mode = chat.tool_choice().mode();
  return mode == v1::TOOL_CHOICE_MODE_REQUIRED || mode == v1::TOOL_CHOICE_MODE_NAMED;
}

std::optional<ApiError> ConvertChat(const Json& json, v1::Chat* chat) {
  const Json& messages = json["messages"];
  for (size_t i = 0; i < messages.size(); ++i) {
    if (auto fault = ConvertMessage(messages[i], Indexed("messages", i), chat->add_messages())) return fault;
  }
  if (IsTrue(json, "continue_final_message")) {
    v1::ChatMessage& last = *chat->mutable_messages(chat->messages_size() - 1);
    if (last.role() != v1::ROLE_ASSISTANT) {
      return Fault("continue_final_message", "is true, but the last message is not from the assistant");
    }
    if (last.prefix()) {
      return Fault("continue_final_message", "is true, and the last message has prefix; give one of the two");
    }
    last.set_prefix(true);
  }
  if (const Json* tools = Find(json, "tools")) {
    for (const Json& tool : *tools) ConvertTool(tool, chat->add_tools());
  }
  if (const Json* choice = Find(json, "tool_choice")) {
    if (auto fault = ConvertToolChoice(*choice, chat)) return fault;
  }
  if (const Json* parallel = Find(json, "parallel_tool_calls")) {
    chat->set_parallel_tool_calls(parallel->get<bool>());
  }
  return std::nullopt;
}

// ---- /v1/completions ----------------------------------------------------------------------------

std::optional<ApiError> ParseCompletion(std::string_view body, const RequestContext& context,
                                        GenerationRequest* request) {
  Json json;
  if (auto fault = ParseGeneration(body, context.shapes->completion, context, &json, request)) return fault;
  v1::GenerateRequest& call = request->calls[0];
  AnswerOptions& answer = request->answer;
  if (Find(json, "max_tokens") == nullptr) call.mutable_stopping()->set_max_tokens(kDefaultCompletionTokens);
  const Json* best_of = Find(json, "best_of");
  if (best_of != nullptr && *best_of != 0 && *best_of != answer.choices) {
    return Fault("best_of", "is " + PrintJson(*best_of) + " where n is " + std::to_string(answer.choices) +
                                "; only as many answers as are returned are made");
  }
  if (call.output().has_logprobs()) answer.logprobs = call.output().logprobs();
  answer.echo = IsTrue(json, "echo");
  if (answer.echo) {
    call.mutable_output()->set_prompt_tokens(true);
    const int32_t scores = std::max(answer.logprobs, answer.prompt_logprobs);
    if (scores >= 0) call.mutable_output()->set_prompt_logprobs(scores);
  }
  return ConvertPrompts(json, request);
}

namespace {

bool IsListOfPrompts(const Json& prompt) { return prompt.is_array() && !prompt[0].is_number(); }

void SetPrompt(const Json& json, const Json& prompt, const std::string& path, v1::GenerateRequest* call,
               FieldNames* names) {
  names->Rename("text", path);
  names->Rename("token_ids.ids", path);
  names->Rename("prompt", path);
  if (prompt.is_string()) {
    call->set_text(prompt.get<std::string>());
    if (const Json* add = Find(json, "add_special_tokens")) call->set_add_bos(add->get<bool>());
    return;
  }
  auto* ids = call->mutable_token_ids()->mutable_ids();
  ids->Reserve(static_cast<int>(prompt.size()));
  for (const Json& id : prompt) ids->Add(id.get<int32_t>());
}

// One call for each prompt. Of several, each has its own fields only.
std::optional<ApiError> ConvertPrompts(const Json& json, GenerationRequest* request) {
  const Json& prompt = json["prompt"];
  if (!IsListOfPrompts(prompt)) {
    SetPrompt(json, prompt, "prompt", &request->calls[0], &request->names[0]);
    return std::nullopt;
  }
  if (prompt.size() == 1) {
    SetPrompt(json, prompt[0], Indexed("prompt", 0), &request->calls[0], &request->names[0]);
    return std::nullopt;
  }
  request->shared = std::exchange(request->calls[0], {});
  request->calls.resize(prompt.size());
  request->names.resize(prompt.size(), request->names[0]);
  for (size_t i = 0; i < prompt.size(); ++i) {
    v1::GenerateRequest& call = request->calls[i];
    call.set_request_id(request->shared.request_id() + "-" + std::to_string(i));
    call.set_model(request->shared.model());
    SetPrompt(json, prompt[i], Indexed("prompt", i), &call, &request->names[i]);
  }
  request->shared.clear_request_id();
  return std::nullopt;
}

// ---- what both have -----------------------------------------------------------------------------

std::optional<ApiError> ParseGeneration(std::string_view body, const Shape& shape,
                                        const RequestContext& context, Json* json,
                                        GenerationRequest* request) {
  if (auto fault = ParseBody(body, shape, context, json, &request->ignored)) return fault;
  v1::GenerateRequest& call = request->calls.emplace_back();
  FieldNames& names = request->names.emplace_back(shape);
  AnswerOptions& answer = request->answer;
  ApplyFields(shape, *json, &call);

  answer.id = Find(*json, "request_id") != nullptr ? TextOf(*json, "request_id") : context.id;
  call.set_request_id(answer.id);
  answer.created_s = context.created_s;
  answer.system_fingerprint = context.system_fingerprint;
  answer.model = TextOf(*json, "model");
  if (!context.any_model) call.set_model(answer.model);
  answer.stream = IsTrue(*json, "stream");
  if (const Json* options = Find(*json, "stream_options")) {
    answer.usage_chunk = IsTrue(*options, "include_usage");
    answer.usage_in_every_chunk = IsTrue(*options, "continuous_usage_stats");
  }
  if (call.has_choices()) answer.choices = call.choices();
  answer.token_ids = IsTrue(*json, "return_token_ids");
  if (!answer.token_ids) call.mutable_output()->set_token_ids(false);
  answer.tokens_as_ids = IsTrue(*json, "return_tokens_as_token_ids");
  if (call.output().has_prompt_logprobs()) {
    if (answer.stream) return Fault("prompt_logprobs", "cannot be had with stream");
    answer.prompt_logprobs = call.output().prompt_logprobs();
  }
  if (Find(*json, "seed") == nullptr) names.Rename("sampling.seed", "random_seed");
  if (auto fault = ConvertLogitBias(*json, &call)) return fault;
  return ConvertConstraint(*json, &call, &names);
}

// JSON's keys are strings: {"15": -100}.
std::optional<ApiError> ConvertLogitBias(const Json& json, v1::GenerateRequest* request) {
  const Json* bias = Find(json, "logit_bias");
  if (bias == nullptr) return std::nullopt;
  auto& proto = *request->mutable_sampling()->mutable_logit_bias();
  for (const auto& [key, value] : bias->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0) {
      return Fault("logit_bias", "has the key " + JsonString(ShownText(key)) + ", which is no token id");
    }
    proto[id] = value.get<float>();
  }
  return std::nullopt;
}

// Mistral's own servers say it in front of the conversation too.
void PutSafetyFirst(v1::Chat* chat, FieldNames* names) {
  auto* messages = chat->mutable_messages();
  for (int i = 0; i < messages->size(); ++i) {
    names->Rename(Indexed("chat.messages", static_cast<size_t>(i) + 1),
                  Indexed("messages", static_cast<size_t>(i)));
  }
  names->Rename("chat.messages[0]", "safe_prompt");
  v1::ChatMessage* safety = messages->Add();
  safety->set_role(v1::ROLE_SYSTEM);
  safety->set_content(kSafetySentence);
  for (int i = messages->size() - 1; i > 0; --i) messages->SwapElements(i, i - 1);
}

// A chat asks with a flag and a number.
std::optional<ApiError> ConvertLogprobs(const Json& json, GenerationRequest* request) {
  const Json* top = Find(json, "top_logprobs");
  if (!IsTrue(json, "logprobs")) {
    if (top == nullptr || *top == 0) return std::nullopt;
    return Fault("top_logprobs", "is " + PrintJson(*top) + " although logprobs is not true");
  }
  request->answer.logprobs = top == nullptr ? 0 : top->get<int32_t>();
  request->calls[0].mutable_output()->set_logprobs(request->answer.logprobs);
  return std::nullopt;
}

}  // namespace

// ---- constraints --------------------------------------------------------------------------------

namespace {

// One way to say what the output must be: where in the body, and which of the kinds.
struct Demand {
  std::string field;
  const Json* value;
  void (*apply)(const Json& value, v1::Constraint* constraint);
};

void ApplySchema(const Json& value, v1::Constraint* constraint) {
  constraint->set_json_schema(value.is_string() ? value.get<std::string>() : PrintJson(value));
}
void ApplyJsonObject(const Json&, v1::Constraint* constraint) { constraint->set_json_object(true); }
void ApplyRegex(const Json& value, v1::Constraint* constraint) {
  constraint->set_regex(value.get<std::string>());
}
void ApplyGrammar(const Json& value, v1::Constraint* constraint) {
  constraint->set_grammar(value.get<std::string>());
}
void ApplyChoice(const Json& value, v1::Constraint* constraint) {
  for (const Json& text : value) constraint->mutable_choice()->add_texts(text.get<std::string>());
}

bool SaysTheSame(const Demand& demand, const v1::Constraint& constraint) {
  v1::Constraint said;
  demand.apply(*demand.value, &said);
  return said.SerializeAsString() == constraint.SerializeAsString();
}

std::optional<ApiError> AddResponseFormat(const Json& json, std::vector<Demand>* demands) {
  const Json* format = Find(json, "response_format");
  if (format == nullptr || (*format)["type"] == "text") return std::nullopt;
  if ((*format)["type"] == "json_object") {
    demands->push_back({"response_format", format, ApplyJsonObject});
    return std::nullopt;
  }
  const Json* named = Find(*format, "json_schema");
  if (named == nullptr) return Fault("response_format.json_schema", "is missing");
  const Json* schema = Find(*named, "schema");
  demands->push_back(schema == nullptr ? Demand{"response_format", format, ApplyJsonObject}
                                       : Demand{"response_format.json_schema.schema", schema, ApplySchema});
  return std::nullopt;
}

std::optional<ApiError> AddStructuredOutputs(const Json& json, std::vector<Demand>* demands) {
  const Json* outputs = Find(json, "structured_outputs");
  if (outputs == nullptr) return std::nullopt;
  const auto add = [&](const char* key, auto apply) {
    const Json* value = Find(*outputs, key);
    if (value != nullptr) demands->push_back({std::string("structured_outputs.") + key, value, apply});
  };
  add("json", ApplySchema);
  if (IsTrue(*outputs, "json_object")) add("json_object", ApplyJsonObject);
  add("regex", ApplyRegex);
  add("choice", ApplyChoice);
  add("grammar", ApplyGrammar);
  if (demands->empty()) {
    return Fault("structured_outputs",
                 "is empty; it must have one of json, json_object, regex, choice, grammar");
  }
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> ConvertConstraint(const Json& json, v1::GenerateRequest* request, FieldNames* names) {
  std::vector<Demand> demands;
  if (auto fault = AddStructuredOutputs(json, &demands)) return fault;
  if (auto fault = AddResponseFormat(json, &demands)) return fault;
  const auto add = [&](const char* key, auto apply) {
    const Json* value = Find(json, key);
    if (value != nullptr) demands.push_back({key, value, apply});
  };
  add("guided_json", ApplySchema);
  add("guided_regex", ApplyRegex);
  add("guided_choice", ApplyChoice);
  add("guided_grammar", ApplyGrammar);
  add("regex", ApplyRegex);
  add("ebnf", ApplyGrammar);
  if (demands.empty()) return std::nullopt;
  demands[0].apply(*demands[0].value, request->mutable_constraint());
  for (const Demand& demand : demands) {
    if (SaysTheSame(demand, request->constraint())) continue;
    return Fault(demand.field, "is given beside " + demands[0].field + "; an answer has one form");
  }
  for (const char* path :
       {"constraint.json_schema", "constraint.json_object", "constraint.regex", "constraint.grammar",
        "constraint.choice.texts", "constraint.choice", "constraint"}) {
    names->Rename(path, demands[0].field);
  }
  return std::nullopt;
}

// ---- /tokenize, /detokenize ---------------------------------------------------------------------

std::optional<ApiError> ParseTokenize(std::string_view body, const RequestContext& context,
                                      TokenizeBody* parsed) {
  Json json;
  if (auto fault = ParseBody(body, context.shapes->tokenize, context, &json, &parsed->ignored)) return fault;
  if (!context.any_model) parsed->request.set_model(TextOf(json, "model"));
  const Json* text = Find(json, "prompt") != nullptr ? Find(json, "prompt") : Find(json, "content");
  const bool is_chat = Find(json, "messages") != nullptr;
  if (is_chat == (text != nullptr)) {
    return Fault("prompt", is_chat ? "is given beside messages" : "is missing, and so is messages");
  }
  parsed->token_strings = IsTrue(json, "return_token_strs");
  parsed->request.set_pieces(parsed->token_strings);
  if (is_chat) return ConvertChat(json, parsed->request.mutable_chat());
  parsed->request.set_text(text->get<std::string>());
  const Json* add_special = Find(json, "add_special_tokens");
  if (add_special != nullptr) {
    parsed->request.set_add_bos(add_special->get<bool>());
  } else if (parsed->request.text().empty()) {
    parsed->request.set_add_bos(false);  // nothing is no tokens
  }
  return std::nullopt;
}

std::optional<ApiError> ParseDetokenize(std::string_view body, const RequestContext& context,
                                        DetokenizeBody* parsed) {
  Json json;
  if (auto fault = ParseBody(body, context.shapes->detokenize, context, &json, &parsed->ignored))
    return fault;
  if (!context.any_model) parsed->request.set_model(TextOf(json, "model"));
  for (const Json& id : json["tokens"]) parsed->request.add_token_ids(id.get<int32_t>());
  return std::nullopt;
}

// ---- names --------------------------------------------------------------------------------------

namespace {

// In OpenAI's chats, what a tool or a call says of its function is in an object of its own.
std::string WithFunction(std::string name) {
  if (name.find("tools[") == std::string::npos && name.find("tool_calls[") == std::string::npos) return name;
  for (const std::string_view key : {".name", ".description", ".parameters", ".arguments"}) {
    if (name.ends_with("]" + std::string(key))) name.insert(name.size() - key.size(), ".function");
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
