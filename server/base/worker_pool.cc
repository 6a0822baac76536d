#include "server/base/worker_pool.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

int64_t NowNs() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

WorkerPool::WorkerPool(const WorkerPoolOptions& options)
    : max_running_long_(std::max(1, options.threads - 1)), queue_(options) {
  TM_CHECK(options.threads >= 1, "a pool of %d threads", options.threads);
  for (int32_t i = 0; i < options.threads; ++i) threads_.emplace_back([this] { Loop(); });
}

void WorkerPool::Join() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_ready_.notify_all();
  for (std::thread& thread : std::exchange(threads_, {})) thread.join();
}

bool WorkerPool::TrySubmit(WorkPiece piece) {
  std::vector<WorkPiece> given_way;
  {
    std::lock_guard lock(mutex_);
    if (!queue_.Push(std::move(piece), &given_way)) return false;
    const int64_t now_ns = NowNs();
    drain_.Came(now_ns);
    for (size_t i = 0; i < given_way.size(); ++i) drain_.Left(now_ns);
  }
  work_ready_.notify_one();
  for (const WorkPiece& gone : given_way) gone.give_way();
  return true;
}

void WorkerPool::Loop() {
  const bool holds_callers_back = options().max_running_of_caller < options().threads;
  std::unique_lock lock(mutex_);
  while (true) {
    std::optional<WorkPiece> piece = queue_.Begin(running_long_ < max_running_long_);
    if (!piece) {
      if (stopping_ && queue_.waiting() == 0) return;
      work_ready_.wait(lock);
      continue;
    }
    const bool is_long = queue_.IsLong(*piece);
    if (is_long) ++running_long_;
    const int64_t begin_ns = NowNs();
    drain_.Left(begin_ns);
    lock.unlock();
    piece->run();
    piece->run = piece->give_way = nullptr;  // what they hold goes before it counts as done
    const int64_t took_ns = NowNs() - begin_ns;
    lock.lock();
    queue_.End(*piece, took_ns);
    if (is_long) --running_long_;
    // What waited for this one's end may start now, or the end is near.
    if (is_long || holds_callers_back || stopping_) work_ready_.notify_all();
    if (queue_.running() == 0 && queue_.waiting() == 0) idle_.notify_all();
  }
}

void WorkerPool::WaitIdle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return queue_.running() == 0 && queue_.waiting() == 0; });
}

int64_t WorkerPool::pending() const {
  std::lock_guard lock(mutex_);
  return queue_.running() + queue_.waiting();
}

int64_t WorkerPool::TellNextRoomNs() { return drain_.TellNextNs(NowNs()); }

int64_t WorkerPool::pending_bytes() const {
  std::lock_guard lock(mutex_);
  return queue_.pending_bytes();
}

}  // namespace tramontane
