// Makers of settings, one for each kind of value. Main thread; pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/setup/config.h"

namespace tramontane::setting_kinds {

inline constexpr char kSwitch[] = "true|false";  // the metavar of a Switch

// As a JSON string.
std::string Quoted(std::string_view text);

Setting Text(const char* key, std::string ServeConfig::* member, const char* metavar, const char* help);
Setting OneOf(const char* key, std::string ServeConfig::* member, const std::vector<std::string>& allowed,
              const char* metavar, const char* help);
Setting Integer(const char* key, int64_t ServeConfig::* member, int64_t least, int64_t most,
                const char* metavar, const char* help);
Setting Switch(const char* key, bool ServeConfig::* member, const char* help);
Setting Seconds(const char* key, double ServeConfig::* member, double least, double most, const char* help);
Setting Bytes(const char* key, int64_t ServeConfig::* member, int64_t least, int64_t most, const char* help);
Setting Address(const char* key, std::string ServeConfig::* member, const char* or_else, const char* help);
// One that is no more: whatever is given, `instead` is said.
Setting Gone(const char* key, const char* instead);
Setting List(const char* key, std::vector<std::string> ServeConfig::* member, const char* metavar,
             std::string (*fault)(const std::string&), const char* help);

}  // namespace tramontane::setting_kinds
