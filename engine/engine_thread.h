// EngineThread: the thread that steps an engine until it is told to stop.
// Any thread. The engine outlives it.
#pragma once

#include <atomic>
#include <thread>

#include "engine/engine.h"

namespace tramontane {

class EngineThread {
 public:
  explicit EngineThread(Engine& engine) : engine_(engine), thread_([this] { Run(); }) {}
  // Stops after the step it is in; requests still alive are the engine's to end.
  ~EngineThread() {
    stopping_.store(true, std::memory_order_release);
    engine_.Wake();
    thread_.join();
  }

 private:
  void Run() {
    while (!stopping_.load(std::memory_order_acquire)) {
      if (engine_.Step() != StepOutcome::kWorked) engine_.WaitForWork(Signal::kForever);
    }
  }

  Engine& engine_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tramontane
