#include "kernels/cuda/emulator/command_queue.h"

#include <utility>

#include "kernels/core/check.h"

namespace tramontane::emulator {

void CommandQueue::Push(Command command) {
  if (recording_) {
    recorded_.push_back(std::move(command));
    return;
  }
  waiting_.push_back(std::move(command));
  ++queued_;
}

void CommandQueue::RunUntil(int64_t mark) {
  while (queued_ - static_cast<int64_t>(waiting_.size()) < mark) {
    TM_CHECK(!waiting_.empty(), "a mark beyond the end of the queue");
    const Command command = std::move(waiting_.front());
    waiting_.pop_front();
    command();
  }
}

void CommandQueue::BeginRecording() {
  TM_CHECK(!recording_, "a recording inside a recording");
  recording_ = true;
}

std::vector<CommandQueue::Command> CommandQueue::EndRecording() {
  TM_CHECK(recording_, "no recording is open");
  recording_ = false;
  return std::exchange(recorded_, {});
}

}  // namespace tramontane::emulator
