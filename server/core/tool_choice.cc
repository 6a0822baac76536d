#include "server/core/tool_choice.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/core/tool_arguments.h"

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
  if (TakesNoArguments(arguments)) arguments = NoArguments();
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

RpcError ToolCallConstraint(const v1::Chat& chat, const Tokenizer& tokenizer, v1::Constraint* constraint,
                            ConstraintSource* source) {
  const std::optional<int32_t> tool_calls = tokenizer.ControlId("[TOOL_CALLS]");
  if (!tool_calls) {
    return ToRpcError(FailedPrecondition("the tokenizer has no control token [TOOL_CALLS]")
                          .WithField(kToolChoicePath, FieldForm::kUnnamed));
  }
  const bool is_named = chat.tool_choice().mode() == v1::TOOL_CHOICE_MODE_NAMED;
  const bool one_call = is_named || (chat.has_parallel_tool_calls() && !chat.parallel_tool_calls());
  Json definitions = Json::object();
  Json calls = Json::array();
  std::vector<size_t> tools;  // of `calls`
  for (int i = 0; i < chat.tools_size(); ++i) {
    if (is_named && chat.tools(i).name() != chat.tool_choice().name()) continue;
    calls.push_back(CallSchema(chat.tools(i), &definitions));
    tools.push_back(static_cast<size_t>(i));
  }
  Json schema;
  schema["type"] = "array";
  schema["minItems"] = 1;
  if (one_call) schema["maxItems"] = 1;
  schema["items"] = calls.size() == 1 ? std::move(calls[0]) : Json{{"anyOf", std::move(calls)}};
  schema["$defs"] = std::move(definitions);
  source->path = kToolChoicePath;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string call = tools.size() == 1 ? ".items" : FieldElement(".items.anyOf", i);
    source->parts.push_back(
        {call + ".properties.arguments.$ref", FieldElement("chat.tools", tools[i]) + ".parameters"});
  }
  constraint->set_json_schema(schema.dump());
  constraint->add_forced_prefix_ids(*tool_calls);
  return {};
}

}  // namespace tramontane
