// The files that a report goes to, looked at before a run. Main thread.
#pragma once

#include "bench/load/options.h"
#include "kernels/core/status.h"

namespace tramontane::load {

// INVALID_ARGUMENT where --json, --jsonl or --html cannot be written, or two of them are one file, by another
// name too. A pipe is not opened: who reads it would take the close for the end of the report.
Status CheckReportFiles(const BenchOptions& options);

}  // namespace tramontane::load
