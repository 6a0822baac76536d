// What a process counts and holds besides its engine, for either page of metrics. A plain value.
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
  std::string version = {};
  bool draining = false;
  struct Connections {
    int64_t grpc = 0, http = 0, admin = 0;
  } connections = {};
  struct Held {  // bytes, as tramontane_held_bytes says
    int64_t request_bodies = 0, queued_input = 0, queued_requests = 0, unread_output = 0, unread_answers = 0,
            sessions = 0;
  } held = {};
};

}  // namespace tramontane
