#include "server/setup/log_writer.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace tramontane {
namespace {

// Bytes of `text` that the descriptor took: fewer than all when it is broken.
size_t WriteAll(int fd, std::string_view text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(fd, text.data() + written, text.size() - written);
    if (count >= 0) {
      written += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {  // somebody who shares it made it non-blocking
      pollfd ready = {fd, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      break;
    }
  }
  return written;
}

}  // namespace

// The writer's and its thread's; goes with the last of them.
struct LogWriter::Queue {
  explicit Queue(LogWriterOptions given) : options(std::move(given)) {}

  void Run();
  void WriteOut(int64_t untold);  // holds no lock
  bool empty() const { return waiting.empty() && !is_writing; }

  const LogWriterOptions options;
  std::string writing;  // the thread's

  mutable std::mutex mutex;  // guards everything below
  std::condition_variable changed;
  std::string waiting;
  bool is_writing = false;
  bool ending = false;
  int64_t dropped = 0;
  int64_t told = 0;  // of the dropped ones
};

// Lines are dropped while the buffer is full, so the word of them belongs behind what it held.
void LogWriter::Queue::Run() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return ending || !waiting.empty(); });
    if (waiting.empty()) return;
    writing.swap(waiting);
    is_writing = true;
    const int64_t untold = dropped - std::exchange(told, dropped);
    lock.unlock();
    WriteOut(untold);
    lock.lock();
    is_writing = false;
    changed.notify_all();
  }
}

void LogWriter::Queue::WriteOut(int64_t untold) {
  if (untold > 0) writing += options.tell_dropped(untold);
  const size_t written = WriteAll(options.fd, writing);
  const auto lost = std::count(writing.begin() + static_cast<std::ptrdiff_t>(written), writing.end(), '\n');
  writing.clear();
  if (lost == 0) return;
  std::lock_guard lock(mutex);
  dropped += lost;
}

StatusOr<std::unique_ptr<LogWriter>> LogWriter::Start(LogWriterOptions options) {
  auto queue = std::make_shared<Queue>(std::move(options));
  try {
    std::thread([queue] { queue->Run(); }).detach();
  } catch (const std::system_error& error) {
    return ResourceExhausted(std::string("the system gives no thread for the log: ") + error.what());
  }
  return std::unique_ptr<LogWriter>(new LogWriter(std::move(queue)));
}

LogWriter::LogWriter(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}

LogWriter::~LogWriter() {
  std::lock_guard lock(queue_->mutex);
  queue_->ending = true;
  queue_->changed.notify_all();
}

void LogWriter::Write(std::string_view line) {
  std::lock_guard lock(queue_->mutex);
  if (static_cast<int64_t>(queue_->waiting.size() + line.size()) > queue_->options.max_bytes) {
    ++queue_->dropped;
    return;
  }
  queue_->waiting += line;
  queue_->changed.notify_all();
}

bool LogWriter::Flush(int64_t timeout_ms) {
  std::unique_lock lock(queue_->mutex);
  return queue_->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                  [this] { return queue_->empty(); });
}

int64_t LogWriter::dropped() const {
  std::lock_guard lock(queue_->mutex);
  return queue_->dropped;
}

}  // namespace tramontane
