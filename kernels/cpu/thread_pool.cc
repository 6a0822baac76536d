#include "kernels/cpu/thread_pool.h"

#include <sched.h>

#include <chrono>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

void SpinPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int32_t threads) : threads_(threads) {
  TM_CHECK(threads >= 1, "a pool of %d threads", threads);
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int32_t thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { WorkerLoop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  ++epoch_;
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t count, ItemFunction function, void* context) {
  if (threads_ == 1 || count <= 1) {
    for (int64_t item = 0; item < count; ++item) function(context, item, 0);
    return;
  }
  count_ = count;
  function_ = function;
  context_ = context;
  next_item_.store(0, std::memory_order_relaxed);
  is_open_ = true;
  ++epoch_;
  epoch_.notify_all();

  ClaimItems(0);

  // A worker enters before it looks at is_open_, so after this store one is either counted here or stays out.
  is_open_ = false;
  for (int32_t inside = inside_; inside != 0; inside = inside_) WaitWhileEqual(inside_, inside);
}

void ThreadPool::WorkerLoop(int32_t thread) {
  for (uint32_t seen = 0;;) {
    WaitWhileEqual(epoch_, seen);
    seen = epoch_;
    if (stop_) return;
    ++inside_;
    if (is_open_) ClaimItems(thread);
    --inside_;
    inside_.notify_one();
  }
}

void ThreadPool::ClaimItems(int32_t thread) {
  for (;;) {
    const int64_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= count_) return;
    function_(context_, item, thread);
  }
}

template <typename Word>
void ThreadPool::WaitWhileEqual(const std::atomic<Word>& word, Word old) {
  using Clock = std::chrono::steady_clock;
  if (word != old) return;
  const auto deadline = Clock::now() + std::chrono::microseconds(kSpinMicroseconds);
  do {
    for (int i = 0; i < 32; ++i) {
      if (word != old) return;
      SpinPause();
    }
  } while (Clock::now() < deadline);
  word.wait(old);
}

int32_t UsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) {  // more cores than a cpu_set_t holds
    const unsigned all = std::thread::hardware_concurrency();
    return all == 0 ? 1 : static_cast<int32_t>(all);
  }
  return CPU_COUNT(&cores);
}

}  // namespace tramontane
