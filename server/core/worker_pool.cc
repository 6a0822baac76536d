#include "server/core/worker_pool.h"

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

bool WorkerPool::TrySubmit(int64_t input_bytes, const std::string& client, std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (short_.size() + long_.size() >= static_cast<size_t>(options_.max_queued)) return false;
    if (pending_bytes_ + input_bytes > options_.max_queued_bytes) return false;
    pending_bytes_ += input_bytes;
    std::deque<Item>& queue = input_bytes >= options_.long_bytes ? long_ : short_;
    queue.push_back({input_bytes, submitted_++, client, std::move(work)});
  }
  work_ready_.notify_one();
  return true;
}

void WorkerPool::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    const Next next = NextItem();
    if (next.queue == nullptr) {
      if (stopping_ && short_.empty() && long_.empty()) return;
      work_ready_.wait(lock);
      continue;
    }
    const bool is_long = next.queue == &long_;
    Item item = std::move((*next.queue)[next.at]);
    next.queue->erase(next.queue->begin() + static_cast<std::ptrdiff_t>(next.at));
    CountRunning(item, is_long, 1);

    lock.unlock();
    item.work();
    item.work = nullptr;  // what it captured goes before it counts as done
    lock.lock();

    pending_bytes_ -= item.input_bytes;
    CountRunning(item, is_long, -1);
    // What waited for this one's end may start now, or the end is near.
    if (is_long || !item.client.empty() || stopping_) work_ready_.notify_all();
    if (running_ == 0 && short_.empty() && long_.empty()) idle_.notify_all();
  }
}

void WorkerPool::CountRunning(const Item& item, bool is_long, int32_t change) {
  running_ += change;
  if (is_long) running_long_ += change;
  if (item.client.empty()) return;
  int32_t& running_of_client = running_of_[item.client];
  running_of_client += change;
  if (running_of_client == 0) running_of_.erase(item.client);
}

WorkerPool::Next WorkerPool::NextItem() {
  const Next next_short = FirstThatMayRun(short_);
  const Next next_long = running_long_ < max_running_long_ ? FirstThatMayRun(long_) : Next();
  if (next_short.queue == nullptr) return next_long;
  if (next_long.queue == nullptr) return next_short;
  return next_long.item().order < next_short.item().order ? next_long : next_short;
}

WorkerPool::Next WorkerPool::FirstThatMayRun(std::deque<Item>& queue) const {
  for (size_t at = 0; at < queue.size(); ++at) {
    if (MayRun(queue[at].client)) return {&queue, at};
  }
  return {};
}

bool WorkerPool::MayRun(const std::string& client) const {
  if (client.empty()) return true;
  const auto found = running_of_.find(client);
  return found == running_of_.end() || found->second < options_.max_running_of_client;
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
