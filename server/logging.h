// Logs go to standard error through spdlog: text, or one JSON object a line. Standard output is for results
// only. Main thread, once, before anything is logged.
#pragma once

#include <string>

namespace tramontane {

// level: trace, debug, info, warn, error, off. format: text, json.
//   json: {"time":"2026-01-31T12:00:00.123Z","level":"info","message":"..."}
void SetUpLogging(const std::string& level, const std::string& format);

}  // namespace tramontane
