// The settings as flags of a command, and the text a user gave for each. Main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/setup/config.h"

namespace tramontane {

// As given, in the order of ServeSettings().
using GivenSettings = std::vector<std::pair<const Setting*, std::string>>;

// Adds the flags of the settings whose keys are wanted; what is given for them is put into `given`, which
// lives as long as the command.
void AddSettingFlags(bool (*is_wanted)(std::string_view key), GivenSettings* given, CLI::App* command);

// Puts what was given into `config`. Every problem, one line each.
std::vector<std::string> ApplyFlags(const GivenSettings& given, ServeConfig* config);

}  // namespace tramontane
