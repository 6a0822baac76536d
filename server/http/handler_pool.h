// HandlerPool: the threads that requests are parsed on, in the order of their HandlerQueue. Any thread.
// Always: where there are two threads or more, long work never has the last of them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "server/http/handler_queue.h"

namespace tramontane {

class HandlerPool {
 public:
  // `max_waiting`: one more is not taken.
  HandlerPool(int32_t threads, int64_t max_waiting);
  ~HandlerPool() { Join(); }

  // False, and nothing taken: too much waits.
  bool TrySubmit(HandlerWork work);
  // Returns when all that was submitted is done; what comes later is not.
  void Join();

 private:
  void Loop();

  const int32_t max_running_long_;
  std::mutex mutex_;  // guards what follows, but for threads_
  std::condition_variable changed_;
  HandlerQueue queue_;
  int32_t running_long_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tramontane
