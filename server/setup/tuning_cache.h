// The file that --tuning-cache names: which of a GPU's kernels were the fastest when they were timed, of any
// number of devices (Backend::Tuning). Main thread, while a model is loaded.
//
//   tramontane tuning 1
//   DEVICE,LIBRARY IN OUT KIND MIN_ROWS MAX_ROWS KERNEL      a line for each choice
#pragma once

#include <cstdint>
#include <string>

#include "kernels/backend.h"
#include "kernels/core/status.h"

namespace tramontane {

inline constexpr int64_t kMaxTuningBytes = int64_t{16} << 20;

// Hands the backend what the file says; a file that is not there says nothing. False: this backend has
// nothing to choose by time, and the file was not read. Before weights are packed.
StatusOr<bool> UseTuningCache(const std::string& path, Backend& backend);

// Writes what the backend knows, aside first; not where the file says the same. How many choices that is.
StatusOr<int64_t> WriteTuningCache(const std::string& path, Backend& backend);

}  // namespace tramontane
