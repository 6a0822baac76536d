#include "server/setup/setting_kinds.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "server/base/host_port.h"

namespace tramontane {
namespace setting_kinds {
namespace {

using Json = nlohmann::ordered_json;

template <typename Number>
bool ParseNumber(std::string_view text, Number* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string Quoted(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

Setting Text(const char* key, std::string ServeConfig::* member, const char* metavar, const char* help) {
  return {key, help, metavar,
          [member](ServeConfig& config, std::string_view text) {
            config.*member = std::string(text);
            return std::string();
          },
          [member](const ServeConfig& config) { return Quoted(config.*member); }};
}

Setting OneOf(const char* key, std::string ServeConfig::* member, const std::vector<std::string>& allowed,
              const char* metavar, const char* help) {
  return {key, help, metavar,
          [member, allowed](ServeConfig& config, std::string_view text) {
            config.*member = std::string(text);
            if (std::find(allowed.begin(), allowed.end(), text) != allowed.end()) return std::string();
            std::string list;
            for (const std::string& word : allowed) list += (list.empty() ? "" : ", ") + Quoted(word);
            return "is " + Quoted(text) + ", it must be one of " + list;
          },
          [member](const ServeConfig& config) { return Quoted(config.*member); }};
}

Setting Integer(const char* key, int64_t ServeConfig::* member, int64_t least, int64_t most,
                const char* metavar, const char* help) {
  return {key, help, metavar,
          [=](ServeConfig& config, std::string_view text) -> std::string {
            int64_t value = 0;
            if (!ParseNumber(text, &value)) return "is " + Quoted(text) + ", it must be a whole number";
            if (value < least) {
              return "is " + std::to_string(value) + ", the least is " + std::to_string(least);
            }
            if (value > most) return "is " + std::to_string(value) + ", the most is " + std::to_string(most);
            config.*member = value;
            return {};
          },
          [member](const ServeConfig& config) { return std::to_string(config.*member); }};
}

Setting Switch(const char* key, bool ServeConfig::* member, const char* help) {
  return {key, help, kSwitch,
          [member](ServeConfig& config, std::string_view text) -> std::string {
            if (text != "true" && text != "false") return "is " + Quoted(text) + ", it must be true or false";
            config.*member = text == "true";
            return {};
          },
          [member](const ServeConfig& config) { return config.*member ? "true" : "false"; }};
}

Setting Seconds(const char* key, double ServeConfig::* member, double least, double most, const char* help) {
  return {key, help, "SECONDS",
          [=](ServeConfig& config, std::string_view text) -> std::string {
            double value = 0;
            if (!ParseNumber(text, &value) || !std::isfinite(value)) {
              return "is " + Quoted(text) + ", it must be a number of seconds";
            }
            if (value < least || value > most) {
              return "is " + std::string(text) + ", it must lie in " +
                     (least == 0 ? "0" : Json(least).dump()) + " .. " + Json(most).dump();
            }
            config.*member = value;
            return {};
          },
          [member](const ServeConfig& config) { return Json(config.*member).dump(); }};
}

Setting Bytes(const char* key, int64_t ServeConfig::* member, int64_t least, int64_t most, const char* help) {
  return {key, help, "BYTES",
          [=](ServeConfig& config, std::string_view text) -> std::string {
            const StatusOr<int64_t> bytes = ParseBytes(text);
            if (!bytes.ok()) return bytes.status().message();
            if (*bytes < least || *bytes > most) {
              return "is " + std::to_string(*bytes) + " bytes, it must lie in " + std::to_string(least) +
                     " .. " + std::to_string(most);
            }
            config.*member = *bytes;
            return {};
          },
          [member](const ServeConfig& config) { return std::to_string(config.*member); }};
}

// Where a server listens; `or_else` is what may stand there besides, "off" or "unix:PATH".
Setting Address(const char* key, std::string ServeConfig::* member, const char* or_else, const char* help) {
  return {key, help, "HOST:PORT",
          [=](ServeConfig& config, std::string_view text) -> std::string {
            const std::string_view other(or_else);
            const bool is_other = other == "off" ? text == other : text.starts_with("unix:");
            if (!is_other) {
              const Status status = ParseHostPort(text).status();
              if (!status.ok()) return status.message() + ", or it is " + or_else;
            }
            config.*member = std::string(text);
            return {};
          },
          [member](const ServeConfig& config) { return Quoted(config.*member); }};
}

Setting Gone(const char* key, const char* instead) {
  return {key, instead, kSwitch,
          [instead](ServeConfig&, std::string_view text) {
            return text == "false" ? "" : std::string("is no more: ") + instead;
          },
          nullptr};
}

// A comma-separated flag, a JSON list of strings or one string. `fault` says what is wrong with one: "must be
// ...", or "".
Setting List(const char* key, std::vector<std::string> ServeConfig::* member, const char* metavar,
             std::string (*fault)(const std::string&), const char* help) {
  return {key, help, metavar,
          [=](ServeConfig& config, std::string_view text) -> std::string {
            std::vector<std::string> names;
            while (!text.empty()) {
              const size_t comma = std::min(text.find(','), text.size());
              if (comma == 0) return "has an empty name";
              names.emplace_back(text.substr(0, comma));
              const std::string wrong = fault(names.back());
              if (!wrong.empty()) return "is " + Quoted(names.back()) + ", it " + wrong;
              text.remove_prefix(std::min(comma + 1, text.size()));
            }
            config.*member = names;
            return {};
          },
          [member](const ServeConfig& config) { return Json(config.*member).dump(); }};
}

}  // namespace setting_kinds

StatusOr<int64_t> ParseBytes(std::string_view text) {
  struct Unit {
    const char* name;
    int64_t bytes;
  };
  constexpr Unit kUnits[] = {{"", 1},
                             {"B", 1},
                             {"KB", 1000},
                             {"MB", 1000 * 1000},
                             {"GB", 1000 * 1000 * 1000},
                             {"KiB", 1ll << 10},
                             {"MiB", 1ll << 20},
                             {"GiB", 1ll << 30},
                             {"TiB", 1ll << 40}};
  const Status bad =
      InvalidArgument("is " + setting_kinds::Quoted(text) +
                      ", it must be a number of bytes with an optional unit: B, KB, MB, GB, KiB, "
                      "MiB, GiB, TiB");
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return bad;
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  for (const Unit& known : kUnits) {
    if (unit != known.name) continue;
    const double bytes = number * static_cast<double>(known.bytes);
    if (bytes > 0x1p60)
      return InvalidArgument("is " + setting_kinds::Quoted(text) + ", the most is 1048576TiB");
    return static_cast<int64_t>(bytes);
  }
  return bad;
}

}  // namespace tramontane
