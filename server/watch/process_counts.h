// What a process counts besides its engine, for either page of metrics. A plain value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tramontane {

struct ReloadCount {
  std::string what;    // "keys", "tls"
  int64_t taken = 0;   // its new content is in force
  int64_t failed = 0;  // it had a fault
};

struct ProcessCounts {
  int64_t dropped_log_lines = 0;
  std::vector<ReloadCount> reloads = {};  // of files
};

}  // namespace tramontane
