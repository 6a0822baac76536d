// Fiber: a stack and a place to go on, switched by hand. One CUDA thread of an emulated block runs on one
// fiber. The thread that made it. Sanitizers are told of every switch.
#pragma once

#include <cstddef>

namespace tramontane::emulator {

class Fiber {
 public:
  using Entry = void (*)(void* argument);

  explicit Fiber(size_t stack_bytes);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Makes the next Resume() start entry(argument) on a fresh stack. REQUIRES: not running, or finished.
  void Start(Entry entry, void* argument);

  // Runs the fiber until it suspends or its entry returns. Called by the scheduler, not from a fiber.
  void Resume();

  // Goes back to the scheduler; returns at the next Resume(). Called on this fiber.
  void Suspend();

  bool finished() const { return finished_; }

 private:
  static void Run(Fiber* self);

  std::byte* stack_ = nullptr;  // lowest address
  size_t stack_bytes_ = 0;
  void* own_context_ = nullptr;        // saved stack pointer of the fiber
  void* scheduler_context_ = nullptr;  // saved stack pointer of whoever resumed it
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  bool finished_ = true;
  // Sanitizers' own handles.
  void* fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
  void* tsan_fiber_ = nullptr;
  void* tsan_scheduler_ = nullptr;
};

}  // namespace tramontane::emulator
