// CommandQueue: the emulator's stream. Launches and copies queue up here and run only when somebody waits for
// them, or as often as a recording of them is replayed; so host code that reads device memory while it queues
// a step sees what was there before the step, as it would on a device. Tests only. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace tramontane::emulator {

class CommandQueue {
 public:
  using Command = std::function<void()>;

  // At the end of the queue, or of the recording while one is open.
  void Push(Command command);

  // Commands queued so far, those that have run included. A mark for RunUntil.
  int64_t queued() const { return queued_; }
  // Runs commands in order until `mark` of them have run.
  void RunUntil(int64_t mark);

  // Between the two, commands are recorded instead of queued. REQUIRES: recording() is false / true.
  void BeginRecording();
  std::vector<Command> EndRecording();
  bool recording() const { return recording_; }

 private:
  std::deque<Command> waiting_;
  std::vector<Command> recorded_;
  int64_t queued_ = 0;
  bool recording_ = false;
};

}  // namespace tramontane::emulator
