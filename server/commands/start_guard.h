// StartGuard: while a server starts, want of threads, memory or files ends the process with a sentence and
// status 1, wherever it strikes: also inside a library that throws on a thread of its own, or knows nothing
// but abort().
//
// Main thread, one at a time. Once it is released an abort is an abort again, with its core.
#pragma once

#include <exception>
#include <string>

#include "kernels/core/status.h"

namespace tramontane {

class StartGuard {
 public:
  StartGuard();
  ~StartGuard();  // as Release
  StartGuard(const StartGuard&) = delete;
  StartGuard& operator=(const StartGuard&) = delete;

  void Release();

 private:
  std::terminate_handler terminate_before_ = nullptr;
};

// What a command that serves needs before anything else: files, a log, ears for signals. Not OK: one of them
// cannot be had, and there may be no log to say so.
Status PrepareToServe(const std::string& log_level, const std::string& log_format);

}  // namespace tramontane
