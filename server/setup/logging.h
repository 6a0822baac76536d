// Logs go to standard error through spdlog: text, or one JSON object a line. Standard output is for results
// only.
//
// SetUpLogging: main thread, once, before anything is logged; the rest from any thread.
// Always: who logs never waits for standard error (log_writer.h).
#pragma once

#include <cstdint>
#include <string>

#include "kernels/core/status.h"

namespace tramontane {

// level: trace, debug, info, warn, error, off. format: text, json.
//   json: {"time":"2026-01-31T12:00:00.123Z","level":"info","message":"..."}
// Not OK: there is no thread for it.
Status SetUpLogging(const std::string& level, const std::string& format);

// Before the process ends: waits until what was logged is written, but no longer than a second.
void FlushLogs();

// Lines that standard error did not take in time.
int64_t DroppedLogLines();

}  // namespace tramontane
