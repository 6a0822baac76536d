// WorkerPool: a bounded queue of work and the few threads that do it, so that nothing slow ever runs on
// gRPC's threads or on the engine's.
//
// Any thread may call TrySubmit, WaitIdle and the counters.
// Always: at most `max_queued` pieces of work wait, and what waits and runs holds at most `max_queued_bytes`
// of input; TrySubmit never blocks. Work starts in the order of submission, but for one rule: inputs of
// `long_bytes` or more never occupy the last free thread, so that short inputs do not wait behind long ones;
// and where a client may run so many pieces at once, its next one lets others pass.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tramontane {

struct WorkerPoolOptions {
  int32_t threads = 2;
  int32_t max_queued = 2048;                      // waiting, not running; one more is refused
  int64_t max_queued_bytes = int64_t{256} << 20;  // waiting and running together; more is refused
  int64_t long_bytes = 64 << 10;
  int32_t max_running_of_client = INT32_MAX;
};

class WorkerPool {
 public:
  explicit WorkerPool(const WorkerPoolOptions& options);
  ~WorkerPool();  // does what is queued, then joins
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False when the pool is full; then `work` was not taken. `work` must not throw.
  [[nodiscard]] bool TrySubmit(int64_t input_bytes, std::function<void()> work) {
    return TrySubmit(input_bytes, "", std::move(work));
  }
  // `client`: whose work it is; "": nobody's in particular.
  [[nodiscard]] bool TrySubmit(int64_t input_bytes, const std::string& client, std::function<void()> work);

  // Returns once everything submitted before is done.
  void WaitIdle();

  int64_t pending() const;  // waiting and running
  const WorkerPoolOptions& options() const { return options_; }

 private:
  struct Item {
    int64_t input_bytes = 0;
    uint64_t order = 0;
    std::string client;
    std::function<void()> work;
  };
  // The oldest item of a queue that may start now.
  struct Next {
    std::deque<Item>* queue = nullptr;  // null: none may
    size_t at = 0;
    const Item& item() const { return (*queue)[at]; }
  };

  // These hold mutex_.
  void Loop();
  Next NextItem();
  Next FirstThatMayRun(std::deque<Item>& queue) const;
  bool MayRun(const std::string& client) const;
  void CountRunning(const Item& item, bool is_long, int32_t change);

  const WorkerPoolOptions options_;
  const int32_t max_running_long_;

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable work_ready_;
  std::condition_variable idle_;
  std::deque<Item> short_;
  std::deque<Item> long_;
  uint64_t submitted_ = 0;
  int64_t pending_bytes_ = 0;
  int32_t running_ = 0;
  int32_t running_long_ = 0;
  std::unordered_map<std::string, int32_t>
      running_of_;  // client -> pieces, where there are any; at most `threads`
  bool stopping_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace tramontane
