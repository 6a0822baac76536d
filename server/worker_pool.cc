#include "server/worker_pool.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {

WorkerPool::WorkerPool(const WorkerPoolOptions& options)
    : options_(options), max_running_long_(std::max(1, options.threads - 1)) {
  TM_CHECK(options.threads >= 1, "a pool of %d threads", options.threads);
  for (int32_t i = 0; i < options.threads; ++i) threads_.emplace_back([this] { Loop(); });
}

WorkerPool::~WorkerPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkerPool::TrySubmit(int64_t input_bytes, std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (short_.size() + long_.size() >= static_cast<size_t>(options_.max_queued)) return false;
    if (pending_bytes_ + input_bytes > options_.max_queued_bytes) return false;
    pending_bytes_ += input_bytes;
    std::deque<Item>& queue = input_bytes >= options_.long_bytes ? long_ : short_;
    queue.push_back({input_bytes, submitted_++, std::move(work)});
  }
  work_ready_.notify_one();
  return true;
}

void WorkerPool::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    std::deque<Item>* queue = NextQueue();
    if (queue == nullptr) {
      if (stopping_ && short_.empty() && long_.empty()) return;
      work_ready_.wait(lock);
      continue;
    }
    const bool is_long = queue == &long_;
    Item item = std::move(queue->front());
    queue->pop_front();
    ++running_;
    running_long_ += is_long;

    lock.unlock();
    item.work();
    item.work = nullptr;  // what it captured goes before it counts as done
    lock.lock();

    pending_bytes_ -= item.input_bytes;
    --running_;
    running_long_ -= is_long;
    if (is_long || stopping_) work_ready_.notify_all();  // another long one may start now, or the end is near
    if (running_ == 0 && short_.empty() && long_.empty()) idle_.notify_all();
  }
}

std::deque<WorkerPool::Item>* WorkerPool::NextQueue() {
  const bool may_run_long = !long_.empty() && running_long_ < max_running_long_;
  if (short_.empty()) return may_run_long ? &long_ : nullptr;
  if (!may_run_long) return &short_;
  return long_.front().order < short_.front().order ? &long_ : &short_;
}

void WorkerPool::WaitIdle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return running_ == 0 && short_.empty() && long_.empty(); });
}

int64_t WorkerPool::pending() const {
  std::lock_guard lock(mutex_);
  return running_ + static_cast<int64_t>(short_.size() + long_.size());
}

}  // namespace tramontane
