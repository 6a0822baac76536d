// TraceFile: writes a trace to a file while the server runs. Made and ended on one thread; it has one of its
// own, which alone writes. A file without its end, as a killed process leaves it, still opens in Perfetto.
#pragma once

#include <condition_variable>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "kernels/core/status.h"
#include "server/watch/trace_text.h"

namespace tramontane {

class TraceFile {
 public:
  // INVALID_ARGUMENT where the file cannot be written.
  static StatusOr<std::unique_ptr<TraceFile>> Open(const std::string& path);
  ~TraceFile();  // writes the rest

  // From now on, until the end. Once.
  void Record(std::unique_ptr<TraceText> trace);

 private:
  explicit TraceFile(std::ofstream file) : file_(std::move(file)) {}
  void Run();

  std::ofstream file_;  // the thread's, once there is one
  std::unique_ptr<TraceText> trace_;
  std::mutex mutex_;  // guards stopping_
  std::condition_variable stops_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tramontane
