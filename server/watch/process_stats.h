// What the system says of this process. Any thread.
#pragma once

#include <cstdint>

namespace tramontane {

// As of now; 0 where the system does not say it.
struct ProcessStats {
  double cpu_seconds = 0;  // of user and system
  int64_t resident_bytes = 0, virtual_bytes = 0;
  int64_t open_files = 0, max_files = 0;
  int64_t threads = 0;
  double start_time_s = 0;  // since 1970
};

ProcessStats ReadProcessStats();

}  // namespace tramontane
