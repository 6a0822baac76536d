// Reading a file of a model folder, built in or on disk, whole and bounded. Any thread; pure.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/core/status.h"

namespace tramontane {

// Larger than `max_bytes`, or not a regular file, is an error that names the file.
StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

}  // namespace tramontane
