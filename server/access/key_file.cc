#include "server/access/key_file.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "kernels/core/nearest_name.h"
#include "server/base/host_port.h"

namespace tramontane {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostKeys = 100'000;
constexpr size_t kMostNameBytes = 64;
constexpr size_t kMostQuoted = 64;  // bytes of a value in an error

// "2026-12-31T23:59:59Z", "...+01:00", with a fraction or without. Seconds since 1970.
std::optional<int64_t> ParseTime(const std::string& text) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0, length = 0;
  const int read = std::sscanf(text.c_str(), "%4d-%2d-%2d%*1[Tt ]%2d:%2d:%2d%n", &year, &month, &day, &hour,
                               &minute, &second, &length);
  const bool in_range = month >= 1 && month <= 12 && day >= 1 && day <= 31 && hour >= 0 && hour <= 23 &&
                        minute >= 0 && minute <= 59 && second >= 0 && second <= 60;
  if (read != 6 || length != 19 || !in_range) return std::nullopt;
  std::string zone = text.substr(19);
  if (zone.starts_with('.')) zone.erase(0, std::min(zone.size(), zone.find_first_not_of("0123456789", 1)));
  int64_t offset_s = 0;
  if (zone != "Z" && zone != "z") {
    int hours = 0, minutes = 0, end = 0;
    const bool has_sign = zone.starts_with('+') || zone.starts_with('-');
    if (!has_sign || std::sscanf(zone.c_str() + 1, "%2d:%2d%n", &hours, &minutes, &end) != 2 || end != 5 ||
        zone.size() != 6 || hours < 0 || hours > 23 || minutes < 0 || minutes > 59) {
      return std::nullopt;
    }
    offset_s = (hours * 60 + minutes) * 60 * (zone[0] == '-' ? -1 : 1);
  }
  std::tm utc{};
  utc.tm_year = year - 1900;
  utc.tm_mon = month - 1;
  utc.tm_mday = day;
  utc.tm_hour = hour;
  utc.tm_min = minute;
  utc.tm_sec = second;
  const std::time_t time = timegm(&utc);
  if (utc.tm_mday != day || utc.tm_mon != month - 1) return std::nullopt;  // the 31st of a shorter month
  return time - offset_s;
}

std::optional<KeyDigest> ParseDigest(const std::string& hex) {
  KeyDigest digest{};
  if (hex.size() != 2 * digest.size()) return std::nullopt;
  for (size_t i = 0; i < hex.size(); ++i) {
    const char c = hex[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    digest[i / 2] = static_cast<uint8_t>(digest[i / 2] << 4 | digit);
  }
  return digest;
}

// One entry, field by field. The first fault stays.
class EntryReader {
 public:
  EntryReader(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  StatusOr<ApiKey> Read() {
    if (!json_.is_object()) return InvalidArgument(path_ + " is no JSON object");
    ApiKey key;
    for (const auto& [field, value] : json_.items()) {
      if (!IsKnown(field)) Fail(field, "is not a field; the nearest is \"" + Nearest(field) + "\"");
    }
    key.name = Text("name");
    if (fault_.empty()) {
      if (const std::string fault = KeyNameFault(key.name); !fault.empty()) Fail("name", fault);
    }
    ReadDigest(&key);
    for (const Json& model : Of("models", Json::array())) {
      if (!model.is_string()) Fail("models", "must be a list of names");
      if (model.is_string()) key.models.push_back(model.get<std::string>());
    }
    key.admin = Flag("admin");
    key.gateway = Flag("gateway");
    key.disabled = Flag("disabled");
    if (json_.contains("expires")) {
      key.expires_s = ParseTime(Text("expires"));
      if (!key.expires_s) Fail("expires", "must be a time as RFC 3339 has it: \"2027-01-31T12:00:00Z\"");
    }
    ReadSalt(&key);
    key.max_concurrent = Number("max_concurrent", 0, INT32_MAX, 0);
    key.requests_per_minute = Number("requests_per_minute", 0, INT32_MAX, 0);
    key.tokens_per_minute = Number("tokens_per_minute", 0, INT32_MAX, 0);
    // A gateway has held its own callers to theirs.
    key.priority =
        Number("priority", -kMostKeyPriority, kMostKeyPriority, key.gateway ? -kMostKeyPriority : 0);
    key.weight = Number("weight", 1, kMostKeyWeight, 1);
    if (!fault_.empty()) return InvalidArgument(fault_);
    return key;
  }

 private:
  static constexpr std::string_view kFields[] = {"name",
                                                 "sha256",
                                                 "key",
                                                 "models",
                                                 "admin",
                                                 "gateway",
                                                 "expires",
                                                 "disabled",
                                                 "salt",
                                                 "max_concurrent",
                                                 "priority",
                                                 "weight",
                                                 "requests_per_minute",
                                                 "tokens_per_minute"};

  static bool IsKnown(std::string_view field) {
    return std::find(std::begin(kFields), std::end(kFields), field) != std::end(kFields);
  }
  static std::string Nearest(std::string_view field) {
    return std::string(NearestName(field.substr(0, kMostQuoted),
                                   std::vector<std::string_view>(std::begin(kFields), std::end(kFields))));
  }

  void Fail(const std::string& field, const std::string& what) {
    if (fault_.empty()) fault_ = path_ + "." + field.substr(0, kMostQuoted) + " " + what;
  }
  Json Of(const char* field, Json otherwise) {
    if (!json_.contains(field)) return otherwise;
    if (json_[field].type() == otherwise.type()) return json_[field];
    Fail(field, std::string("must be a JSON ") + otherwise.type_name());
    return otherwise;
  }
  std::string Text(const char* field) { return Of(field, "").get<std::string>(); }
  bool Flag(const char* field) { return Of(field, false).get<bool>(); }
  int32_t Number(const char* field, int32_t least, int32_t most, int32_t otherwise) {
    if (!json_.contains(field)) return otherwise;
    const Json& number = json_[field];
    if (number.is_number_integer()) {
      const int64_t value = number.is_number_unsigned()
                                ? static_cast<int64_t>(std::min<uint64_t>(number.get<uint64_t>(), INT64_MAX))
                                : number.get<int64_t>();
      if (value >= least && value <= most) return static_cast<int32_t>(value);
    }
    const std::string given = number.is_number() ? "is " + number.dump() + "; it " : "";
    Fail(field,
         given + "must be a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    return otherwise;
  }

  void ReadDigest(ApiKey* key) {
    const bool has_digest = json_.contains("sha256"), has_plain = json_.contains("key");
    if (has_digest == has_plain) return Fail("sha256", "or key must be there: exactly one of them");
    if (has_digest) {
      const auto digest = ParseDigest(Text("sha256"));
      if (!digest) return Fail("sha256", "must have 64 hexadecimal digits");
      key->digest = *digest;
      return;
    }
    const std::string plain = Text("key");
    if (plain.empty() || plain.size() > kMostKeyBytes) {
      return Fail("key", "has " + std::to_string(plain.size()) + " bytes; it must have 1 to " +
                             std::to_string(kMostKeyBytes));
    }
    key->digest = DigestOfKey(plain);
  }

  // true: a salt of its own, by its name; a text: one that keys may share.
  void ReadSalt(ApiKey* key) {
    if (!json_.contains("salt")) return;
    const Json& salt = json_["salt"];
    if (salt.is_boolean()) {
      if (salt.get<bool>()) key->salt = "key " + key->name;
    } else if (salt.is_string()) {
      key->salt = "salt " + salt.get<std::string>();
    } else {
      Fail("salt", "must be true, false or a text");
    }
  }

  const Json& json_;
  const std::string path_;
  std::string fault_;
};

}  // namespace

StatusOr<std::vector<ApiKey>> ParseKeyFile(std::string_view text) {
  const Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return InvalidArgument("is not JSON");
  if (!document.is_object() || !document.contains("keys") || !document["keys"].is_array()) {
    return InvalidArgument("must be a JSON object with a list \"keys\"");
  }
  if (document.size() > 1) return InvalidArgument("has fields besides \"keys\"");
  const Json& entries = document["keys"];
  if (entries.size() > kMostKeys) {
    return InvalidArgument("has " + std::to_string(entries.size()) + " keys; the most is " +
                           std::to_string(kMostKeys));
  }
  std::vector<ApiKey> keys;
  std::set<std::string> names;
  std::set<KeyDigest> digests;
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string path = "keys[" + std::to_string(i) + "]";
    TM_ASSIGN_OR_RETURN(ApiKey key, EntryReader(entries[i], path).Read());
    if (!names.insert(key.name).second) {
      return InvalidArgument(path + ".name is \"" + key.name + "\", which another entry has");
    }
    if (!digests.insert(key.digest).second) {
      return InvalidArgument(path + " (\"" + key.name + "\") has the key of another entry");
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

std::string KeyFileEntry(const std::string& name, const KeyDigest& digest) {
  std::string hex;
  for (const uint8_t byte : digest) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", byte);
    hex += two;
  }
  return nlohmann::ordered_json{{"name", name}, {"sha256", hex}}.dump();
}

std::string KeyNameFault(std::string_view name) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
  const bool fits = !name.empty() && name.size() <= kMostNameBytes && !name.starts_with('.') &&
                    name.find_first_not_of(kLetters) == std::string_view::npos;
  if (name == "-" || name == "other")
    return "must not be - or other, which /metrics has for those without a row";
  if (fits && (name == "unix" || IsIpAddress(std::string(name)))) return "must not be an address";
  return fits ? "" : "must have 1 to 64 of A-Z a-z 0-9 _ . - and not begin with a dot";
}

}  // namespace tramontane
