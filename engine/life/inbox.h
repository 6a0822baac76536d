// Inbox: requests on their way to the engine thread, and the counts that bound everything not yet running.
//
// Push from any thread; Pop and LeaveQueue from the engine thread. No mutex (MpscQueue). Always: queued()
// <= max_requests, and queued_bytes() <= max_bytes unless one request alone is larger. A request counts from
// Push until LeaveQueue, so those taken but still waiting for a slot count too.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "engine/life/live_request.h"
#include "engine/threads/mpsc_queue.h"

namespace tramontane {

class Inbox {
 public:
  Inbox(int32_t max_requests, int64_t max_bytes) : max_requests_(max_requests), max_bytes_(max_bytes) {}

  // False when so many requests or bytes are queued: the request is refused.
  bool Push(std::shared_ptr<LiveRequest> request);

  // The oldest that was pushed and not popped; null: there is none.
  std::shared_ptr<LiveRequest> Pop() { return pushed_.Pop().value_or(nullptr); }
  bool empty() const { return pushed_.empty(); }

  // `request`, one of those taken, runs now, or ended before it ran.
  void LeaveQueue(const LiveRequest& request);

  int32_t queued() const { return queued_.load(std::memory_order_relaxed); }
  int64_t queued_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }

 private:
  bool ReservePlace();
  bool ReserveBytes(int64_t bytes);

  const int32_t max_requests_;
  const int64_t max_bytes_;
  std::atomic<int32_t> queued_{0};
  std::atomic<int64_t> queued_bytes_{0};
  MpscQueue<std::shared_ptr<LiveRequest>> pushed_;
};

}  // namespace tramontane
