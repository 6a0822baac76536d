// Reads fields of JSON objects that came from a file, and names what is wrong with them.
//
// Any thread. Pure functions. `path` is where the object lies, with its dot: "config.".
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/core/status.h"
#include "kernels/core/utf8.h"

namespace tramontane {

// A value as it may stand in a message.
inline std::string ShownJson(const nlohmann::json& value) {
  return Excerpt(value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace));
}

inline Status WrongValue(const std::string& key, const nlohmann::json& value, const std::string& wanted) {
  return DataLoss(key + " is " + ShownJson(value) + ", not " + wanted);
}

// Null where the key is absent or its value is null.
inline const nlohmann::json* FindField(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// Whether `value` is an integer from `least` to `most`.
inline bool IsIntegerWithin(const nlohmann::json& value, int64_t least, int64_t most) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(most)) &&
         value.get<int64_t>() >= least && value.get<int64_t>() <= most;
}

inline StatusOr<int64_t> IntegerField(const nlohmann::json& object, const std::string& path, const char* key,
                                      int64_t least, int64_t most) {
  const nlohmann::json* value = FindField(object, key);
  if (value == nullptr) return DataLoss(path + key + " is missing");
  if (IsIntegerWithin(*value, least, most)) return value->get<int64_t>();
  return WrongValue(path + key, *value,
                    "an integer from " + std::to_string(least) + " to " + std::to_string(most));
}

inline StatusOr<std::string> StringField(const nlohmann::json& object, const std::string& path,
                                         const char* key) {
  const nlohmann::json* value = FindField(object, key);
  if (value == nullptr) return DataLoss(path + key + " is missing");
  if (value->is_string()) return value->get<std::string>();
  return WrongValue(path + key, *value, "a string");
}

inline StatusOr<bool> BoolField(const nlohmann::json& object, const std::string& path, const char* key,
                                bool fallback) {
  const nlohmann::json* value = FindField(object, key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  return WrongValue(path + key, *value, "true or false");
}

// The object that a file is, without what `watch` took from it: called for each event of the parser, with
// depth, kind and value; false drops the value. A fault that it met goes to `status`, which is asked first.
template <typename Watch>
StatusOr<nlohmann::json> ParseWatched(std::string_view text, const Status& status, Watch watch) {
  using nlohmann::json;
  const auto first_fault = [&status](std::string message) {
    return status.ok() ? DataLoss(std::move(message)) : status;
  };
  json value;
  try {
    value = json::parse(text.begin(), text.end(), [&](int depth, json::parse_event_t event, json& part) {
      return status.ok() && watch(depth, event, part);
    });
  } catch (const json::parse_error& error) {
    return first_fault("not valid JSON at byte " + std::to_string(error.byte));
  } catch (const json::exception&) {
    return first_fault("not valid JSON: a number is out of range");
  }
  if (!status.ok()) return status;
  if (!value.is_object()) return DataLoss("not a JSON object");
  return value;
}

}  // namespace tramontane
