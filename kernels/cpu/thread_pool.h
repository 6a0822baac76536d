// ThreadPool: the backend's compute threads. The caller takes part; the others are persistent workers.
//
// Owner: one thread at a time calls ParallelFor (the engine thread); calls do not nest.
// Items are claimed one by one in order, so which thread runs which item varies: an item must write only what
// is its own, and then results do not depend on the number of threads. Idle workers spin for at most
// kSpinMicroseconds after the last call, then sleep on a futex. A worker that wakes up late finds the items
// gone and is not waited for. With one thread there is no worker and no atomic operation.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace tramontane {

class ThreadPool {
 public:
  // Long enough to bridge the serial parts between two ops of a step, short enough to leave the cores to
  // others between steps.
  static constexpr int64_t kSpinMicroseconds = 30;

  using ItemFunction = void (*)(void* context, int64_t item, int32_t thread);

  // threads >= 1, the caller's included.
  explicit ThreadPool(int32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int32_t threads() const { return threads_; }

  // Calls function(context, item, thread) once for every item in [0, count), thread in [0, threads()), and
  // returns when all are done; what they wrote is then visible to the caller.
  void ParallelFor(int64_t count, ItemFunction function, void* context);

  // The same for a callable body(item, thread).
  template <typename Body>
  void ParallelFor(int64_t count, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    ParallelFor(
        count,
        [](void* context, int64_t item, int32_t thread) { (*static_cast<Plain*>(context))(item, thread); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  void WorkerLoop(int32_t thread);
  void ClaimItems(int32_t thread);
  // Returns once `word` no longer holds `old`: a bounded spin, then sleep.
  template <typename Word>
  static void WaitWhileEqual(const std::atomic<Word>& word, Word old);

  const int32_t threads_;
  std::vector<std::thread> workers_;

  // The job. Written by the caller while is_open_ is false and no worker is inside; read by workers inside.
  int64_t count_ = 0;
  ItemFunction function_ = nullptr;
  void* context_ = nullptr;

  alignas(64) std::atomic<int64_t> next_item_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};  // grows with every job, and once to stop
  std::atomic<bool> is_open_{false};            // workers may enter
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<int32_t> inside_{0};  // workers that may touch the job
};

// One per core this process may use (its affinity mask).
int32_t UsableCores();

}  // namespace tramontane
