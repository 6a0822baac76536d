#include "models/json_file.h"

#include <set>
#include <vector>

namespace tramontane {

using nlohmann::json;

StatusOr<json> ParseJsonObject(std::string_view text, const std::string& file) {
  bool too_deep = false;
  std::string twice;
  std::vector<std::set<std::string>> keys;  // [depth] of the object that is open there
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      if (depth >= kMaxJsonFileDepth) {
        too_deep = true;
        return false;
      }
      if (static_cast<int>(keys.size()) <= depth) keys.resize(depth + 1);
      keys[depth].clear();
    } else if (event == json::parse_event_t::key && depth <= kMaxJsonFileDepth) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys[depth - 1].insert(key).second) twice = key;
    }
    return true;
  };

  json value;
  try {
    value = json::parse(text.begin(), text.end(), watch);
  } catch (const json::parse_error& error) {
    return InvalidArgument(file + ": not valid JSON at byte " + std::to_string(error.byte));
  } catch (const json::exception&) {
    return InvalidArgument(file + ": not valid JSON: a number is out of range");
  }
  if (too_deep)
    return InvalidArgument(file + ": nested deeper than " + std::to_string(kMaxJsonFileDepth) + " levels");
  if (!value.is_object()) return InvalidArgument(file + ": not a JSON object");
  if (!twice.empty()) return InvalidArgument(file + ": key " + JsonText(twice) + " stands twice");
  return value;
}

std::string JsonText(const json& value) {
  constexpr size_t kLongest = 100;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

}  // namespace tramontane
