#include "server/watch/trace_file.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace tramontane {
namespace {

constexpr std::chrono::milliseconds kWritesEvery{250};

}  // namespace

StatusOr<std::unique_ptr<TraceFile>> TraceFile::Open(const std::string& path) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) {
    return InvalidArgument("trace_file is \"" + path + "\": it cannot be written: " + std::strerror(errno));
  }
  return std::unique_ptr<TraceFile>(new TraceFile(std::move(file)));
}

TraceFile::~TraceFile() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stops_.notify_one();
  thread_.join();
}

void TraceFile::Record(std::unique_ptr<TraceText> trace) {
  trace_ = std::move(trace);
  thread_ = std::thread([this] { Run(); });
}

void TraceFile::Run() {
  std::unique_lock lock(mutex_);
  while (!stops_.wait_for(lock, kWritesEvery, [this] { return stopping_; })) {
    lock.unlock();
    file_ << trace_->Next() << std::flush;
    lock.lock();
  }
  file_ << trace_->End() << std::flush;
}

}  // namespace tramontane
