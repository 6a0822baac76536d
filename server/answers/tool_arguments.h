// What a tool's arguments are, by what it says of its parameters. To OpenAI's clients a tool that says
// nothing has none, though as a JSON Schema that would be anything. Any thread.
#pragma once

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tramontane {

// `parameters`: as parsed. Nothing is what is absent, null or {}, notes for readers apart; no parameters,
// too, are no `properties`, and an object that may have none.
inline bool TakesNoArguments(const nlohmann::ordered_json& parameters) {
  constexpr std::array<std::string_view, 9> kNotes = {"title",      "description", "$schema",
                                                      "$comment",   "default",     "examples",
                                                      "deprecated", "readOnly",    "writeOnly"};
  if (!parameters.is_object()) return true;
  bool is_any_object = false;
  bool has_none = false;
  for (const auto& [key, value] : parameters.items()) {
    const bool is_nothing = value.is_null() || (value.is_structured() && value.empty());
    if (std::find(kNotes.begin(), kNotes.end(), key) != kNotes.end()) continue;
    if (key == "required" && is_nothing) continue;
    if (key == "type" && value == "object") {
      is_any_object = true;
    } else if ((key == "properties" && is_nothing) || (key == "additionalProperties" && value == false)) {
      has_none = true;
    } else {
      return false;
    }
  }
  return has_none || !is_any_object;
}

// The schema of {}, the only arguments that such a tool has, without white space.
inline nlohmann::ordered_json NoArguments() {
  return {{"type", "object"}, {"const", nlohmann::ordered_json::object()}};
}

// What a call's arguments are held to: an object, whatever else the schema says. A `type` that is no object
// stays: nothing could be held to that.
inline std::string ArgumentsSchema(const std::string& parameters_json) {
  auto schema = nlohmann::ordered_json::parse(parameters_json, nullptr, /*allow_exceptions=*/false);
  if (TakesNoArguments(schema)) schema = NoArguments();
  const auto type = schema.find("type");
  const bool may_be_object =
      type == schema.end() ||
      (type->is_array() && std::find(type->begin(), type->end(), "object") != type->end());
  if (may_be_object) schema["type"] = "object";
  return schema.dump();
}

// `schema`: that. Its `type`, where no object has it; else "".
inline std::string TypeThatIsNoObject(const std::string& schema) {
  const auto parsed = nlohmann::ordered_json::parse(schema);
  return parsed["type"] == "object" ? "" : parsed["type"].dump();
}

}  // namespace tramontane
