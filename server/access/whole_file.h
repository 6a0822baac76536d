// A small file's content, as it is now, and who can read it.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/core/status.h"

namespace tramontane {

// NOT_FOUND: why it cannot be read. INVALID_ARGUMENT: it has more than `most_bytes`. Neither names it.
StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t most_bytes);

// Others than the owner can.
bool OthersCanRead(const std::string& path);

inline constexpr char kOthersCanRead[] = "others than its owner can read it: chmod 600 keeps them away";

}  // namespace tramontane
