// The API key with which a command asks a server. Main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "kernels/core/status.h"

namespace tramontane {

// Adds --api-key-file; `file` lives as long as the command.
void AddApiKeyFlag(std::string* file, CLI::App* command);

// The first line of the file; without a file TRAMONTANE_API_KEY; "": none. INVALID_ARGUMENT: the file cannot
// be read, or what it holds is no header's text.
StatusOr<std::string> ClientKey(const std::string& file);

}  // namespace tramontane
