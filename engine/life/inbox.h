// Inbox: requests on their way to the engine thread, and the counts that bound everything not yet running.
//
// Push from any thread; Pop and LeaveQueue from the engine thread. No mutex (MpscQueue). Always: queued()
// <= max_requests, and queued_bytes() <= max_bytes unless one request alone is larger. A request counts from
// Push until LeaveQueue, so those taken but still waiting for a slot count too.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "engine/life/live_request.h"
#include "engine/threads/mpsc_queue.h"

namespace tramontane {

class Inbox {
 public:
  Inbox(int32_t max_requests, int64_t max_bytes) : max_requests_(max_requests), max_bytes_(max_bytes) {}

  // False when so many requests or bytes are queued: the request is refused.
  bool Push(std::shared_ptr<LiveRequest> request) {
    const int64_t bytes = request->queued_bytes();
    if (!ReserveBytes(bytes)) return false;
    if (!ReservePlace()) {
      queued_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
      return false;
    }
    pushed_.Push(std::move(request));
    return true;
  }

  // The oldest that was pushed and not popped; null: there is none.
  std::shared_ptr<LiveRequest> Pop() { return pushed_.Pop().value_or(nullptr); }
  bool empty() const { return pushed_.empty(); }

  // `request`, one of those taken, runs now, or ended before it ran.
  void LeaveQueue(const LiveRequest& request) {
    queued_bytes_.fetch_sub(request.queued_bytes(), std::memory_order_relaxed);
    queued_.fetch_sub(1, std::memory_order_relaxed);
  }

  bool full() const { return queued() >= max_requests_ || queued_bytes() >= max_bytes_; }
  int32_t queued() const { return queued_.load(std::memory_order_relaxed); }
  int64_t queued_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }

 private:
  bool ReservePlace() {
    int32_t queued = queued_.load(std::memory_order_relaxed);
    do {
      if (queued >= max_requests_) return false;
    } while (!queued_.compare_exchange_weak(queued, queued + 1, std::memory_order_relaxed));
    return true;
  }
  bool ReserveBytes(int64_t bytes) {
    int64_t held = queued_bytes_.load(std::memory_order_relaxed);
    do {
      if (held > 0 && held + bytes > max_bytes_) return false;
    } while (!queued_bytes_.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
    return true;
  }

  const int32_t max_requests_;
  const int64_t max_bytes_;
  std::atomic<int32_t> queued_{0};
  std::atomic<int64_t> queued_bytes_{0};
  MpscQueue<std::shared_ptr<LiveRequest>> pushed_;
};

}  // namespace tramontane
