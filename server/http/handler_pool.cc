#include "server/http/handler_pool.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace tramontane {

HandlerPool::HandlerPool(int32_t threads, int64_t max_waiting)
    : max_running_long_(std::max(1, threads - 1)), queue_(max_waiting) {
  for (int32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
}

bool HandlerPool::TrySubmit(HandlerWork work) {
  {
    std::lock_guard lock(mutex_);
    if (!queue_.Push(std::move(work))) return false;
  }
  changed_.notify_one();
  return true;
}

void HandlerPool::Join() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : std::exchange(threads_, {})) thread.join();
}

void HandlerPool::Loop() {
  using Clock = std::chrono::steady_clock;
  std::unique_lock lock(mutex_);
  while (true) {
    std::optional<HandlerWork> work = queue_.Pop(running_long_ < max_running_long_);
    if (!work) {
      if (stopping_ && queue_.empty()) return;
      changed_.wait(lock);
      continue;
    }
    const bool is_long = work->is_long();
    if (is_long) ++running_long_;
    lock.unlock();
    const auto begin = Clock::now();
    work->run();
    work->run = nullptr;  // what it holds goes before it counts as done
    const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin);
    lock.lock();
    queue_.Done(*work, took.count());
    if (is_long) --running_long_;
    // What waited for the end of long work may run now, or the end is near.
    if (is_long || stopping_) changed_.notify_all();
  }
}

}  // namespace tramontane
