// RateBucket: an allowance of a minute. What is taken comes back continuously, up to one minute's; it may be
// taken below zero. Times are nanoseconds on one clock, the caller's. Any thread; no lock.
#pragma once

#include <atomic>
#include <cstdint>

namespace tramontane {

class RateBucket {
 public:
  // `per_minute`: 0: there is no bound, and nothing is counted.
  explicit RateBucket(int64_t per_minute) : per_minute_(per_minute) {}
  // What was taken stays taken. One thread at a time.
  void SetBound(int64_t per_minute, int64_t now_ns);

  int64_t per_minute() const { return per_minute_.load(std::memory_order_relaxed); }
  // Below 0: more was taken than there was.
  int64_t Left(int64_t now_ns) const;
  bool IsBelowZero(int64_t now_ns) const;
  // How long until so much is left; 0: it is now.
  int64_t NsUntil(int64_t left, int64_t now_ns) const;

  bool TryTake(int64_t now_ns);  // one; false: there is none
  // Also where there is less. Below 0: given back.
  void Take(int64_t amount, int64_t now_ns);

 private:
  int64_t UsedNs(int64_t now_ns) const;

  std::atomic<int64_t> per_minute_;
  std::atomic<int64_t> full_at_ns_{0};  // when all is back
};

}  // namespace tramontane
