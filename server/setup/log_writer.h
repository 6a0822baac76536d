// LogWriter: lines on their way to a descriptor that may be slow, or that nobody reads: a bounded buffer, and
// the thread that writes it out. What does not fit is dropped and counted, and one line tells of it once
// there is room.
//
// Any thread; Write never waits for the descriptor.
// Always: at most `max_bytes` wait, and as many are being written. A thread that is stuck in write() is left
// behind: it holds on to what it uses, and nobody waits for it longer than he says.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/core/status.h"

namespace tramontane {

struct LogWriterOptions {
  int fd = 2;                     // not closed
  int64_t max_bytes = 256 << 10;  // waiting; a line that does not fit is dropped
  // The line that tells of so many dropped ones. On the writer's thread.
  std::function<std::string(int64_t dropped)> tell_dropped;
};

class LogWriter {
 public:
  // RESOURCE_EXHAUSTED: the system gives no thread.
  static StatusOr<std::unique_ptr<LogWriter>> Start(LogWriterOptions options);
  ~LogWriter();  // what still waits is written if the descriptor takes it
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // `line` with its newline.
  void Write(std::string_view line);

  // Waits until everything is written; false when that took longer.
  bool Flush(int64_t timeout_ms);

  int64_t dropped() const;  // lines so far, those included that the descriptor refused

 private:
  struct Queue;
  explicit LogWriter(std::shared_ptr<Queue> queue);
  const std::shared_ptr<Queue> queue_;
};

}  // namespace tramontane
