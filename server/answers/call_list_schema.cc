#include "server/answers/call_list_schema.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace tramontane {
namespace {

using Json = nlohmann::ordered_json;

// The schema of a tool's arguments moves from a document of its own to another place, and its references with
// it.
class ReferenceMover {
 public:
  ReferenceMover(std::string id, std::string place) : id_(std::move(id)), place_(std::move(place)) {
    if (id_.ends_with('#')) id_.pop_back();
  }

  void Move(Json* schema) const {
    if (schema->is_array()) {
      for (Json& element : *schema) Move(&element);
      return;
    }
    if (!schema->is_object()) return;
    for (auto& [key, value] : schema->items()) {
      if (key == "$ref" && value.is_string()) {
        value = Moved(value.get<std::string>());
      } else if (IsOneOf(key,
                         {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})) {
        if (!value.is_object()) continue;
        for (auto& [name, named] : value.items()) Move(&named);                         // whatever the name
      } else if (!IsOneOf(key, {"const", "enum", "default", "example", "examples"})) {  // those are data
        Move(&value);
      }
    }
  }

 private:
  static bool IsOneOf(std::string_view key, std::initializer_list<std::string_view> keys) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  }

  // "#", "#/..." and the same behind the schema's own id. Others lead nowhere, here or there.
  std::string Moved(const std::string& target) const {
    std::string_view fragment = target;
    if (!id_.empty() && fragment.starts_with(id_)) fragment.remove_prefix(id_.size());
    if (fragment.empty() && !target.empty()) return place_;
    if (fragment != "#" && !fragment.starts_with("#/")) return target;
    return place_ + std::string(fragment.substr(1));
  }

  std::string id_;     // the schema's $id, or ""
  std::string place_;  // "#/$defs/arguments_of_f"
};

// A key as a step of a JSON pointer in a URI.
std::string PointerStep(std::string_view key) {
  std::string step;
  for (const char c : key) {
    if (c == '~') {
      step += "~0";
    } else if (c == '/') {
      step += "~1";
    } else if (c == '%') {
      step += "%25";
    } else {
      step += c;
    }
  }
  return step;
}

// Where the schema of its arguments lies in ours: the key among the definitions, and what refers to it.
std::string KeyOf(const v1::Tool& tool) { return "arguments_of_" + tool.name(); }
std::string PlaceOf(const v1::Tool& tool) { return "#/$defs/" + PointerStep(KeyOf(tool)); }

// {"name": the tool's, "arguments": as its schema says}; the schema itself goes to `definitions`.
Json CallSchema(const v1::Tool& tool, const std::string& arguments_schema, Json* definitions) {
  const std::string key = KeyOf(tool);
  const std::string place = PlaceOf(tool);
  Json arguments = Json::parse(arguments_schema);
  const auto id = arguments.find("$id");
  const bool has_id = id != arguments.end() && id->is_string();
  ReferenceMover(has_id ? id->get<std::string>() : "", place).Move(&arguments);
  if (has_id) arguments.erase("$id");  // it names the whole document, which this is no more
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

std::string CallListSchema(const v1::Chat& chat, const std::vector<ListedTool>& tools, bool one_call,
                           ConstraintSource* source) {
  Json definitions = Json::object();
  Json calls = Json::array();
  Json names = Json::array();  // of those with any object
  std::vector<size_t> alternative(tools.size());
  for (size_t i = 0; i < tools.size(); ++i) {
    const v1::Tool& tool = chat.tools(tools[i].index);
    if (tools[i].schema == kAnyObject) {
      names.push_back(tool.name());
      continue;
    }
    alternative[i] = calls.size();
    calls.push_back(CallSchema(tool, tools[i].schema, &definitions));
  }
  const size_t last = calls.size();
  if (!names.empty()) {
    Json any = CallSchema({}, kAnyObject, &definitions);
    any["properties"]["name"] = {{"enum", std::move(names)}};
    calls.push_back(std::move(any));
  }
  const bool is_one = calls.size() == 1;
  Json schema;
  schema["type"] = "array";
  schema["minItems"] = 1;
  if (one_call) schema["maxItems"] = 1;
  schema["items"] = is_one ? std::move(calls[0]) : Json{{"anyOf", std::move(calls)}};
  schema["$defs"] = std::move(definitions);
  source->path = "chat.tool_choice";
  source->parts.clear();
  for (size_t i = 0; i < tools.size(); ++i) {
    const bool is_any = tools[i].schema == kAnyObject;
    const std::string call = is_one ? ".items" : FieldElement(".items.anyOf", is_any ? last : alternative[i]);
    const auto index = static_cast<size_t>(tools[i].index);
    source->parts.push_back({call + ".properties.arguments.$ref",
                             FieldElement("chat.tools", index) + ".parameters",
                             PlaceOf(is_any ? v1::Tool() : chat.tools(tools[i].index))});
  }
  return schema.dump();
}

}  // namespace tramontane
