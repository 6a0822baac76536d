// The file of API keys, parsed. A pure function; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "server/access/api_key.h"

namespace tramontane {

// {"keys":[{"name": "alice", "sha256": "<hex>"}, ...]}. INVALID_ARGUMENT names the entry and the field, and
// quotes no key.
StatusOr<std::vector<ApiKey>> ParseKeyFile(std::string_view json);

// An entry for such a file, as `tramontane keys new` prints it.
std::string KeyFileEntry(const std::string& name, const KeyDigest& digest);

// "" when `name` can name a key: 1 to 64 of A-Z a-z 0-9 _ . -, not beginning with a dot. Else what is wrong.
std::string KeyNameFault(std::string_view name);

}  // namespace tramontane
