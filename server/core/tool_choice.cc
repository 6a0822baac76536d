#include "server/core/tool_choice.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tramontane {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kToolChoicePath = "chat.tool_choice";

bool HasTool(const v1::Chat& chat, const std::string& name) {
  return std::any_of(chat.tools().begin(), chat.tools().end(),
                     [&name](const v1::Tool& tool) { return tool.name() == name; });
}

// The schema of a tool's arguments moves from a document of its own to `place` in ours, and its references
// with it.
void MoveReferences(const std::string& place, Json* schema) {
  if (schema->is_array()) {
    for (Json& element : *schema) MoveReferences(place, &element);
    return;
  }
  if (!schema->is_object()) return;
  for (auto& [key, value] : schema->items()) {
    const bool is_data = key == "const" || key == "enum" || key == "default" || key == "examples";
    if (is_data) continue;
    if (key == "$ref" && value.is_string()) {
      const std::string target = value.get<std::string>();
      if (target.starts_with('#')) value = place + target.substr(1);
    } else {
      MoveReferences(place, &value);
    }
  }
}

// {"name": the tool's, "arguments": as its schema says}; the schema itself goes to `definitions`.
Json CallSchema(const v1::Tool& tool, Json* definitions) {
  const std::string key = "arguments_of_" + tool.name();
  const std::string place = "#/$defs/" + key;
  Json arguments = Json::parse(tool.parameters_json(), nullptr, /*allow_exceptions=*/false);
  if (!arguments.is_object()) arguments = Json::object();
  if (!arguments.contains("type")) arguments["type"] = "object";
  MoveReferences(place, &arguments);
  (*definitions)[key] = std::move(arguments);
  Json schema;
  schema["type"] = "object";
  schema["properties"]["name"]["const"] = tool.name();
  schema["properties"]["arguments"]["$ref"] = place;
  schema["required"] = {"name", "arguments"};
  schema["additionalProperties"] = false;
  return schema;
}

}  // namespace

RpcError CheckToolChoice(const v1::Chat& chat) {
  const v1::ToolChoice& choice = chat.tool_choice();
  switch (choice.mode()) {
    case v1::TOOL_CHOICE_MODE_UNSPECIFIED:
    case v1::TOOL_CHOICE_MODE_AUTO:
    case v1::TOOL_CHOICE_MODE_NONE:
      break;
    case v1::TOOL_CHOICE_MODE_REQUIRED:
      if (chat.tools().empty()) return FieldError(kToolChoicePath, "requires a call, and there are no tools");
      break;
    case v1::TOOL_CHOICE_MODE_NAMED:
      if (HasTool(chat, choice.name())) return {};
      return FieldError(std::string(kToolChoicePath) + ".name", "is not the name of one of the tools");
    default:
      return FieldError(std::string(kToolChoicePath) + ".mode",
                        "is " + std::to_string(choice.mode()) +
                            ", which is none of TOOL_CHOICE_MODE_AUTO, _NONE, _REQUIRED, _NAMED");
  }
  if (choice.name().empty()) return {};
  return FieldError(std::string(kToolChoicePath) + ".name", "goes with TOOL_CHOICE_MODE_NAMED only");
}

RpcError ToolCallConstraint(const v1::Chat& chat, const Tokenizer& tokenizer, v1::Constraint* constraint) {
  const std::optional<int32_t> tool_calls = tokenizer.ControlId("[TOOL_CALLS]");
  if (!tool_calls) {
    return ToRpcError(
        FailedPrecondition("the tokenizer has no control token [TOOL_CALLS]").WithField(kToolChoicePath));
  }
  const bool is_named = chat.tool_choice().mode() == v1::TOOL_CHOICE_MODE_NAMED;
  const bool one_call = is_named || (chat.has_parallel_tool_calls() && !chat.parallel_tool_calls());
  Json definitions = Json::object();
  Json calls = Json::array();
  for (const v1::Tool& tool : chat.tools()) {
    if (is_named && tool.name() != chat.tool_choice().name()) continue;
    calls.push_back(CallSchema(tool, &definitions));
  }
  Json schema;
  schema["type"] = "array";
  schema["minItems"] = 1;
  if (one_call) schema["maxItems"] = 1;
  schema["items"] = calls.size() == 1 ? std::move(calls[0]) : Json{{"anyOf", std::move(calls)}};
  schema["$defs"] = std::move(definitions);
  constraint->set_json_schema(schema.dump());
  constraint->add_forced_prefix_ids(*tool_calls);
  return {};
}

// The compiler names the place in the schema of the calls: ".items.anyOf[1].properties.arguments.$ref.type:
// ...".
RpcError ToolSchemaError(const v1::Chat& chat, RpcError error) {
  constexpr std::string_view kOption = ".items.anyOf[";
  constexpr std::string_view kArguments = ".properties.arguments.$ref";
  const size_t arguments = error.message.find(kArguments);
  if (error.code != StatusCode::kInvalidArgument || arguments == std::string::npos) return error;
  const size_t option = error.message.find(kOption);
  int tool = 0;
  if (option < arguments) {
    std::from_chars(error.message.data() + option + kOption.size(), error.message.data() + arguments, tool);
  } else {  // the only one that may be called
    while (chat.tool_choice().mode() == v1::TOOL_CHOICE_MODE_NAMED &&
           chat.tools(tool).name() != chat.tool_choice().name()) {
      ++tool;
    }
  }
  return FieldError("chat.tools[" + std::to_string(tool) + "].parameters",
                    error.message.substr(arguments + kArguments.size()));
}

}  // namespace tramontane
