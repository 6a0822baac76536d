// EngineThread: the thread that steps an engine until it is told to stop.
// Any thread. The engine outlives it.
#pragma once

#include <atomic>
#include <thread>

#include "engine/engine.h"

namespace tramontane {

class EngineThread {
 public:
  explicit EngineThread(Engine& engine);
  ~EngineThread();  // stops after the step it is in; requests still alive are the engine's to end

 private:
  void Run();

  Engine& engine_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tramontane
