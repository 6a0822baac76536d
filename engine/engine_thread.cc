#include "engine/engine_thread.h"

#include "engine/threads/signal.h"

namespace tramontane {

EngineThread::EngineThread(Engine& engine) : engine_(engine), thread_([this] { Run(); }) {}

EngineThread::~EngineThread() {
  stopping_.store(true, std::memory_order_release);
  engine_.Wake();
  thread_.join();
}

void EngineThread::Run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    if (engine_.Step() != StepOutcome::kWorked) engine_.WaitForWork(Signal::kForever);
  }
}

}  // namespace tramontane
