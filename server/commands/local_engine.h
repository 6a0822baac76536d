// A model opened and run in this process, without a server: what `generate --local` and `perplexity` start.
// Main thread makes and destroys it.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "engine/engine_host.h"
#include "engine/threads/clock.h"
#include "kernels/core/status.h"
#include "server/setup/config.h"

namespace tramontane {

// Members are destroyed in reverse: the engine before the backend and the clock that it borrows.
struct LocalEngine {
  std::string name;  // of the model
  BackendPtr backend;
  bool tuned = false;  // what a tuning cache did not say was timed
  SteadyClock clock;
  std::unique_ptr<EngineHost> host;
};

// `config` says the model, its files, its device and its memory; model "" is the embedded one. What is logged
// goes to standard error.
StatusOr<std::unique_ptr<LocalEngine>> StartLocalEngine(const ServeConfig& config);

// Lets one thread sleep until there is something to take.
class Bell {
 public:
  void Ring() {
    const std::lock_guard lock(mutex_);
    rung_ = true;
    condition_.notify_one();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [this] { return rung_; });
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool rung_ = false;
};

}  // namespace tramontane
