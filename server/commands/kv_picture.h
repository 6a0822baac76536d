// A RollingTrace as a picture, for `inspect --kv --svg`. Pure; main thread.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "server/commands/rolling_trace.h"

namespace tramontane {

// An SVG file: each iteration's mask, and beside it a row of pages for each sequence: those of sinks, those
// it holds, and those it lets go, crossed out, with the first token of each below its name.
StatusOr<std::string> DrawKvTrace(const RollingTraceOptions& options, const std::vector<RollingStep>& steps);

}  // namespace tramontane
