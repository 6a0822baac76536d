#include "server/openai/responses.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "server/openai/fields.h"
#include "server/openai/foreign_fields.h"
#include "server/openai/tool_calls.h"

namespace tramontane {

// ---- fields -------------------------------------------------------------------------------------

namespace {

constexpr int64_t kMaxMetadataBytes = 64 << 10;  // as JSON: it comes back with the answer
constexpr int64_t kMaxTextBytes = 4 << 10;       // of `text`, beside its schema

// A row that means here what it means in a chat completion.
Field ChatRow(const Shape& chat, std::string_view name) {
  const std::vector<Field>& rows = chat.fields;
  const auto row =
      std::find_if(rows.begin(), rows.end(), [name](const Field& field) { return field.name == name; });
  TM_CHECK(row != rows.end(), "chat completions have no field %s", std::string(name).c_str());
  return *row;
}

Shape TextPartsShape() {
  return ArrayOf(Object({
      {.name = "type",
       .shape = Only({"input_text", "output_text", "text"},
                     "only text is supported: no images, files or refusals"),
       .required = true},
      {.name = "text", .shape = String(), .required = true},
  }));
}

Shape ItemShape() {
  return Object({
      {.name = "type",
       .shape = Only({"message", "function_call", "function_call_output", "reasoning"},
                     "items are messages, function calls, their outputs, and reasoning, which is left out"),
       .doc = "Default message."},
      {.name = "role",
       .shape = OneOfStrings({"user", "assistant", "system", "developer"}),
       .doc = "Of a message."},
      {.name = "content",
       .shape = AnyOf({String(), TextPartsShape(), ArrayOf(Object({}))}),
       .doc = "Of a message: text."},
      {.name = "call_id", .shape = String(), .doc = "Of a function call and its output: what joins them."},
      {.name = "name", .shape = String(1), .doc = "Of a function call."},
      {.name = "arguments", .shape = String(), .doc = "Of a function call: a JSON object as text."},
      {.name = "output", .shape = AnyOf({String(), TextPartsShape()}), .doc = "Of a function call's output."},
  });
}

Shape FunctionToolShape() {
  return Object({
      {.name = "type",
       .shape = Only({"function"}, "only functions are supported, which the caller runs"),
       .required = true},
      {.name = "name", .shape = String(1), .required = true},
      {.name = "description", .shape = String()},
      {.name = "parameters", .shape = Object({}), .doc = "JSON Schema of the arguments. Default: any."},
      {.name = "strict",
       .shape = Boolean(),
       .doc = "Changes nothing: calls that must be made are held to the schema."},
  });
}

Shape TextFormatShape(const FieldLimits& limits) {
  return ClosedObject({
      {.name = "type", .shape = OneOfStrings({"text", "json_object", "json_schema"}), .required = true},
      {.name = "name", .shape = String(), .doc = "Changes nothing."},
      {.name = "description", .shape = String(), .doc = "Changes nothing."},
      {.name = "schema",
       .shape = Within(limits.max_constraint_bytes, Object({})),
       .doc = "With the type json_schema."},
      {.name = "strict", .shape = Boolean(), .doc = "Schemas are always enforced."},
  });
}

std::vector<Field> Fields(const FieldLimits& limits) {
  std::vector<Field> fields = {
      {.name = "input",
       .shape = AnyOf({String(), ArrayOf(ItemShape(), 1)}),
       .doc = "The conversation: a user's message, or all of its items.",
       .required = true},
      {.name = "instructions", .shape = String(), .doc = "A system message in front of the conversation."},
      {.name = "max_output_tokens",
       .shape = Integer(1),
       .doc = "Tokens to generate at most. Default: what the context leaves.",
       .path = "stopping.max_tokens",
       .apply =
           [](const Json& value, v1::GenerateRequest* request) {
             request->mutable_stopping()->set_max_tokens(value.get<int64_t>());
           }},
      {.name = "tools",
       .shape = Within(kMaxToolsBytes, ArrayOf(FunctionToolShape())),
       .doc = "Functions that the model may call.",
       .path = "chat.tools"},
      {.name = "tool_choice",
       .shape = AnyOf({OneOfStrings({"none", "auto", "required"}),
                       Object({{.name = "type",
                                .shape = Only({"function"}, "only functions can be named"),
                                .required = true},
                               {.name = "name", .shape = String(1), .required = true}})}),
       .doc = "none: no call; auto: the model decides; required: at least one call; or the function to call. "
              "Default auto.",
       .path = "chat.tool_choice"},
      {.name = "text",
       .shape =
           Within(limits.max_constraint_bytes + kMaxTextBytes,
                  ClosedObject({{.name = "format",
                                 .shape = TextFormatShape(limits),
                                 .doc = "What the text must be. Default: anything."},
                                Refused("verbosity", {"medium"}, "not supported: ask for it in the input")})),
       .doc = "The form of the answer."},
      {.name = "metadata",
       .shape = Within(kMaxMetadataBytes, MapOf(String())),
       .doc = "Comes back with the answer."},
      {.name = "reasoning", .shape = Object({Refused("effort", {"none"}, kNoThinking), Ignored("summary")})},
      {.name = "truncation",
       .shape = OneOfStrings({"disabled", "auto"}),
       .doc =
           "A conversation is never cut: with auto too, one that does not fit is refused. Default disabled."},
      {.name = "include",
       .shape = ArrayOf(String()),
       .doc = "Accepted; what it asks for (encrypted reasoning, search results) never exists here."},
  };
  const Shape chat = ChatCompletionShape(limits);
  for (const char* name :
       {"model", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "seed", "stop", "min_tokens", "ignore_eos", "stream", "parallel_tool_calls"}) {
    fields.push_back(ChatRow(chat, name));
  }
  std::vector<Field> foreign = ForeignResponsesFields();
  std::move(foreign.begin(), foreign.end(), std::back_inserter(fields));
  return fields;
}

}  // namespace

Shape ResponsesShape(const FieldLimits& limits) { return ClosedObject(Fields(limits)); }

namespace {

Field Always(std::string name, Shape shape) {
  return {.name = std::move(name), .shape = std::move(shape), .required = true};
}
Field OrNull(std::string name, Shape shape) { return {.name = std::move(name), .shape = std::move(shape)}; }

Shape AnswerMessageShape() {
  const Shape part =
      Object({Always("type", OneOfStrings({"output_text"})), Always("text", String()),
              Always("annotations", ArrayOf(Anything())), Always("logprobs", ArrayOf(Anything()))});
  return Object({Always("type", OneOfStrings({"message"})), Always("id", String()),
                 Always("status", OneOfStrings({"completed", "incomplete"})),
                 Always("role", OneOfStrings({"assistant"})), Always("content", ArrayOf(part, 1, 1))});
}

Shape AnswerCallShape() {
  return Object({Always("type", OneOfStrings({"function_call"})), Always("id", String()),
                 Always("call_id", String(9, 9)), Always("name", String(1)), Always("arguments", String(2)),
                 Always("status", OneOfStrings({"completed"}))});
}

Shape AnswerUsageShape() {
  const Shape count = Integer(0);
  return Object({Always("input_tokens", count),
                 Always("input_tokens_details",
                        Object({Always("cached_tokens", count), Always("cache_write_tokens", count)})),
                 Always("output_tokens", count),
                 Always("output_tokens_details", Object({Always("reasoning_tokens", count)})),
                 Always("total_tokens", count)});
}

std::vector<Field> AnswerFields() {
  return {Always("id", String()),
          Always("object", OneOfStrings({"response"})),
          Always("created_at", Integer(0)),
          Always("status", OneOfStrings({"completed", "incomplete"})),
          Always("background", Boolean()),
          OrNull("error", Object({})),
          OrNull("incomplete_details", Object({Always("reason", OneOfStrings({"max_output_tokens"}))})),
          Always("model", String()),
          Always("output", ArrayOf(AnyOf({AnswerMessageShape(), AnswerCallShape()}), 1)),
          Always("usage", AnswerUsageShape()),
          OrNull("instructions", String()),
          OrNull("max_output_tokens", Integer(1)),
          Always("metadata", MapOf(String())),
          Always("parallel_tool_calls", Boolean()),
          OrNull("previous_response_id", String()),
          Always("store", Boolean()),
          OrNull("temperature", Number(0, 100)),
          OrNull("top_p", Number(0, 1)),
          Always("text", Object({})),
          Always("tool_choice", AnyOf({String(), Object({})})),
          Always("tools", ArrayOf(Object({}))),
          Always("truncation", OneOfStrings({"disabled", "auto"}))};
}

}  // namespace

const Shape& ResponsesAnswerShape() {
  static const Shape shape = Object(AnswerFields());
  return shape;
}

// ---- requests -----------------------------------------------------------------------------------

namespace {

ApiError Fault(const std::string& field, const std::string& text) {
  return BadRequest(field, field + ": " + text);
}

v1::Role RoleOf(const std::string& role) {
  if (role == "user") return v1::ROLE_USER;
  if (role == "assistant") return v1::ROLE_ASSISTANT;
  return v1::ROLE_SYSTEM;  // or developer
}

std::string TypeOf(const Json& item) {
  const Json* type = Find(item, "type");
  return type == nullptr ? "message" : type->get<std::string>();
}

// Items to messages, one each, but for calls in a row, which are one message.
class Conversation {
 public:
  Conversation(v1::Chat* chat, FieldNames* names) : chat_(chat), names_(names) {}

  void AddText(v1::Role role, const Json& content, const std::string& path) {
    v1::ChatMessage* message = Add(path);
    message->set_role(role);
    SetContent(content, message);
  }

  std::optional<ApiError> AddItem(const Json& item, const std::string& path) {
    const std::string type = TypeOf(item);
    const auto missing = [&](const char* key) -> std::optional<ApiError> {
      if (Find(item, key) != nullptr) return std::nullopt;
      return Fault(path + "." + key, "is missing");
    };
    if (type == "message") {
      if (auto fault = missing("role")) return fault;
      if (auto fault = missing("content")) return fault;
      const Json& content = *Find(item, "content");
      if (auto part = FindFault(AnyOf({String(), TextPartsShape()}), content, path + ".content")) {
        return Fault(part->path, part->text);
      }
      AddText(RoleOf(item["role"].get<std::string>()), content, path);
    } else if (type == "function_call") {
      for (const char* key : {"call_id", "name", "arguments"}) {
        if (auto fault = missing(key)) return fault;
      }
      AddCall(item, path);
      return std::nullopt;
    } else if (type == "function_call_output") {
      for (const char* key : {"call_id", "output"}) {
        if (auto fault = missing(key)) return fault;
      }
      v1::ChatMessage* message = Add(path);
      message->set_role(v1::ROLE_TOOL);
      message->set_tool_call_id(MistralCallId(item["call_id"].get<std::string>()));
      SetContent(item["output"], message);
    }
    calls_ = nullptr;  // reasoning ends a row of calls too
    return std::nullopt;
  }

 private:
  v1::ChatMessage* Add(const std::string& path) {
    names_->Rename("chat.messages[" + std::to_string(chat_->messages_size()) + "]", path);
    return chat_->add_messages();
  }

  void AddCall(const Json& item, const std::string& path) {
    if (calls_ == nullptr) {
      calls_ = Add(path);
      calls_->set_role(v1::ROLE_ASSISTANT);
    }
    v1::ToolCall* call = calls_->add_tool_calls();
    call->set_id(MistralCallId(item["call_id"].get<std::string>()));
    call->set_name(item["name"].get<std::string>());
    call->set_arguments_json(item["arguments"].get<std::string>());
  }

  v1::Chat* chat_;
  FieldNames* names_;
  v1::ChatMessage* calls_ = nullptr;  // the message that the last item, a call, went to
};

std::optional<ApiError> ConvertInput(const Json& json, v1::Chat* chat, FieldNames* names) {
  Conversation conversation(chat, names);
  if (const Json* instructions = Find(json, "instructions")) {
    conversation.AddText(v1::ROLE_SYSTEM, *instructions, "instructions");
  }
  const Json& input = json["input"];
  if (input.is_string()) {
    conversation.AddText(v1::ROLE_USER, input, "input");
    return std::nullopt;
  }
  for (size_t i = 0; i < input.size(); ++i) {
    if (auto fault = conversation.AddItem(input[i], "input[" + std::to_string(i) + "]")) return fault;
  }
  return std::nullopt;
}

std::optional<ApiError> ConvertTools(const Json& json, v1::Chat* chat) {
  if (const Json* tools = Find(json, "tools")) {
    for (const Json& tool : *tools) {
      v1::Tool* proto = chat->add_tools();
      proto->set_name(tool["name"].get<std::string>());
      if (const Json* description = Find(tool, "description"))
        proto->set_description(description->get<std::string>());
      if (const Json* parameters = Find(tool, "parameters"))
        proto->set_parameters_json(PrintJson(*parameters));
    }
  }
  if (const Json* parallel = Find(json, "parallel_tool_calls"))
    chat->set_parallel_tool_calls(parallel->get<bool>());
  const Json* choice = Find(json, "tool_choice");
  if (choice == nullptr || *choice == "auto") return std::nullopt;
  if (*choice == "none") {
    chat->mutable_tool_choice()->set_mode(v1::TOOL_CHOICE_MODE_NONE);
    return std::nullopt;
  }
  if (chat->tools().empty()) return Fault("tool_choice", "asks for a call, but there are no tools");
  chat->mutable_tool_choice()->set_mode(choice->is_object() ? v1::TOOL_CHOICE_MODE_NAMED
                                                            : v1::TOOL_CHOICE_MODE_REQUIRED);
  if (choice->is_object()) chat->mutable_tool_choice()->set_name((*choice)["name"].get<std::string>());
  return std::nullopt;
}

std::optional<ApiError> ConvertTextFormat(const Json& json, v1::GenerateRequest* call, FieldNames* names) {
  const Json* text = Find(json, "text");
  const Json* format = text == nullptr ? nullptr : Find(*text, "format");
  if (format == nullptr || (*format)["type"] == "text") return std::nullopt;
  if (MustCall(call->chat())) return std::nullopt;  // there will be no text that it could hold
  if ((*format)["type"] == "json_object") {
    call->mutable_constraint()->set_json_object(true);
  } else {
    const Json* schema = Find(*format, "schema");
    if (schema == nullptr) return Fault("text.format.schema", "is missing");
    call->mutable_constraint()->set_json_schema(PrintJson(*schema));
    names->Rename("constraint.json_schema", "text.format.schema");
  }
  names->Rename("constraint", "text.format");
  return std::nullopt;
}

// What the answer says of the request, with the defaults of what was left out.
Json Echo(const Json& json) {
  const auto given = [&json](const char* key, const Json& otherwise) {
    const Json* value = Find(json, key);
    return value == nullptr ? otherwise : *value;
  };
  Json echo = Json::object();
  for (const char* key : {"instructions", "max_output_tokens"}) echo[key] = given(key, nullptr);
  echo["metadata"] = given("metadata", Json::object());
  echo["parallel_tool_calls"] = given("parallel_tool_calls", true);
  echo["previous_response_id"] = nullptr;
  echo["store"] = false;
  for (const char* key : {"temperature", "top_p"}) echo[key] = given(key, nullptr);
  echo["text"] = given("text", {{"format", {{"type", "text"}}}});
  echo["tool_choice"] = given("tool_choice", "auto");
  echo["tools"] = given("tools", Json::array());
  echo["truncation"] = given("truncation", "disabled");
  return echo;
}

}  // namespace

std::optional<ApiError> ParseResponses(std::string_view body, const RequestContext& context,
                                       ResponsesRequest* request) {
  Json json;
  const Shape& shape = context.shapes->responses;
  if (auto fault = ParseBody(body, shape, context, &json, &request->ignored)) return fault;
  request->names = FieldNames(shape);
  v1::GenerateRequest& call = request->call;
  ApplyFields(shape, json, &call);
  call.set_request_id(context.id);
  call.mutable_output()->set_token_ids(false);
  request->answer.id = context.id;
  request->answer.created_s = context.created_s;
  if (const Json* model = Find(json, "model")) request->answer.model = model->get<std::string>();
  if (!context.any_model) call.set_model(request->answer.model);
  if (const Json* stream = Find(json, "stream")) request->answer.stream = stream->get<bool>();

  v1::Chat* chat = call.mutable_chat();
  if (auto fault = ConvertInput(json, chat, &request->names)) return fault;
  if (auto fault = ConvertTools(json, chat)) return fault;
  if (auto fault = ConvertTextFormat(json, &call, &request->names)) return fault;
  request->names.Rename("prompt", "input");
  request->names.Rename("chat", "input");
  SetToolAnswer(call, &request->answer);
  request->echo = Echo(json);
  return std::nullopt;
}

}  // namespace tramontane
