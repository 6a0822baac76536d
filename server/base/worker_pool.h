// WorkerPool: the few threads that do the work of a bounded WorkQueue, so that nothing slow ever runs on the
// threads of a door or of the engine.
//
// Any thread. Always: TrySubmit never blocks. At most `threads` - 1 long pieces run at once; with one thread
// a short piece waits for the long one that runs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "server/base/queue_drain.h"
#include "server/base/work_queue.h"

namespace tramontane {

class WorkerPool {
 public:
  explicit WorkerPool(const WorkerPoolOptions& options);
  ~WorkerPool() { Join(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False when the pool is full; then nothing was taken. Once taken either `run` is called, on a thread of
  // the pool, or `give_way`, on a thread that submits another caller's piece. Neither may throw, and the
  // second one must be quick.
  [[nodiscard]] bool TrySubmit(WorkPiece piece);
  // For a pool that has no callers.
  [[nodiscard]] bool TrySubmit(int64_t input_bytes, std::function<void()> run) {
    return TrySubmit({.caller = "", .bytes = input_bytes, .run = std::move(run)});
  }

  // Returns once everything submitted before is done.
  void WaitIdle();
  // As WaitIdle, and the threads end: what comes later is not done.
  void Join();

  int64_t pending() const;        // waiting and running
  int64_t pending_bytes() const;  // of their input
  // For a piece that was refused: when there may be room for it (QueueDrain).
  int64_t TellNextRoomNs();
  const WorkerPoolOptions& options() const { return queue_.options(); }

 private:
  void Loop();

  const int32_t max_running_long_;
  mutable std::mutex mutex_;  // guards what follows, but for threads_
  std::condition_variable work_ready_;
  std::condition_variable idle_;
  WorkQueue queue_;
  QueueDrain drain_;  // of what waits in it
  int32_t running_long_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tramontane
