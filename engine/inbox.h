// Inbox: requests on their way to the engine thread, and the one count that bounds everything not yet
// running.
//
// Push from any thread; TakeAll and LeaveQueue from the engine thread. Lock-free: pushed nodes form a stack
// that the engine thread takes away whole. Always: queued() <= capacity. A request counts from Push until
// LeaveQueue, so those taken but still waiting for a slot count too.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/live_request.h"

namespace tramontane {

class Inbox {
 public:
  explicit Inbox(int32_t capacity) : capacity_(capacity) {}
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // False when `capacity` requests are queued: the request is refused.
  bool Push(std::shared_ptr<LiveRequest> request);

  // Everything pushed since the last call, oldest first.
  std::vector<std::shared_ptr<LiveRequest>> TakeAll();

  // One of the requests taken runs now, or ended before it ran.
  void LeaveQueue() { queued_.fetch_sub(1, std::memory_order_relaxed); }

  int32_t queued() const { return queued_.load(std::memory_order_relaxed); }

 private:
  struct Node {
    std::shared_ptr<LiveRequest> request;
    Node* below = nullptr;  // pushed just before this one
  };

  bool ReservePlace();

  const int32_t capacity_;
  std::atomic<int32_t> queued_{0};
  std::atomic<Node*> top_{nullptr};  // the newest
};

}  // namespace tramontane
