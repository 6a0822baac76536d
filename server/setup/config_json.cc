#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/core/nearest_name.h"
#include "server/setup/config.h"
#include "server/setup/setting_kinds.h"

namespace tramontane {
namespace {

using Json = nlohmann::ordered_json;
using setting_kinds::kSwitch;
using setting_kinds::Quoted;

const Setting& NearestSetting(std::string_view key) {
  const std::vector<Setting>& settings = ServeSettings();
  return *std::min_element(settings.begin(), settings.end(), [key](const Setting& a, const Setting& b) {
    return EditDistance(key, a.key) < EditDistance(key, b.key);
  });
}

// The text a setting is set from, or false for a JSON value of the wrong kind.
bool TextOf(const Json& value, std::string* text) {
  if (value.is_string()) {
    *text = value.get<std::string>();
    return true;
  }
  if (value.is_number() || value.is_boolean()) {
    *text = value.dump();
    return true;
  }
  if (value.is_array()) {
    text->clear();
    for (const Json& element : value) {
      if (!element.is_string() || element.get<std::string>().find(',') != std::string::npos) return false;
      *text += (text->empty() ? "" : ",") + element.get<std::string>();
    }
    return true;
  }
  return false;
}

// A string where a number belongs is a mistake worth naming; memory may be "4GiB" or a number.
bool KindFits(const Setting& setting, const Json& value) {
  const std::string kind = setting.metavar;
  if (kind == kSwitch) return value.is_boolean();
  if (kind == "N" || kind == "SECONDS") return value.is_number();
  if (kind == "BYTES") return value.is_number() || value.is_string();
  if (IsList(setting)) return value.is_array() || value.is_string();
  return value.is_string();
}

}  // namespace

std::vector<std::string> ApplyConfigJson(std::string_view json_text, ServeConfig* config) {
  std::vector<std::string> problems;
  Json document;
  std::vector<std::string> keys;  // of the top level, to find repeated ones
  try {
    document = Json::parse(json_text, [&](int depth, Json::parse_event_t event, Json& parsed) {
      if (depth == 1 && event == Json::parse_event_t::key) keys.push_back(parsed.get<std::string>());
      return depth <= 8;
    });
  } catch (const nlohmann::json::exception& error) {
    return {std::string("not valid JSON: ") + error.what()};
  }
  if (!document.is_object()) return {"the document must be a JSON object of settings"};
  std::sort(keys.begin(), keys.end());
  for (size_t i = 1; i < keys.size(); ++i) {
    if (keys[i] == keys[i - 1] && (i < 2 || keys[i] != keys[i - 2])) {
      problems.push_back(Quoted(keys[i]) + " is given more than once");
    }
  }
  for (const auto& [key, value] : document.items()) {
    const std::vector<Setting>& settings = ServeSettings();
    const auto setting = std::find_if(settings.begin(), settings.end(),
                                      [&key = key](const Setting& s) { return key == s.key; });
    if (setting == settings.end()) {
      problems.push_back(Quoted(key) + " is unknown; did you mean " + Quoted(NearestSetting(key).key) + "?");
      continue;
    }
    std::string text;
    if (!KindFits(*setting, value) || !TextOf(value, &text)) {
      problems.push_back(Quoted(key) + " is " + value.dump(-1, ' ', false, Json::error_handler_t::replace) +
                         ", it must be of the kind " + setting->metavar);
      continue;
    }
    const std::string problem = setting->set(*config, text);
    if (!problem.empty()) problems.push_back(Quoted(key) + " " + problem);
  }
  return problems;
}

std::string PrintConfig(const ServeConfig& config) {
  std::string lines;
  for (const Setting& setting : ServeSettings()) {
    if (setting.json == nullptr) continue;
    lines += lines.empty() ? "  " : ",\n  ";
    lines += Quoted(setting.key) + ": " + setting.json(config);
  }
  return "{\n" + lines + "\n}\n";
}

}  // namespace tramontane
