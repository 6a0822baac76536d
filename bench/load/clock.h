// The time of a run, and its waits: a real clock, and in tests one whose time is an event queue's.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace tramontane::load {

inline constexpr int64_t kNsPerMs = 1'000'000;
inline constexpr int64_t kNsPerSecond = 1'000'000'000;

class Clock {
 public:
  virtual ~Clock() = default;

  // CLOCK_MONOTONIC, ns. Any thread.
  virtual int64_t Now() = 0;
  // The runner's thread. Returns at `ns`, or earlier after a Wake since the last return.
  virtual void WaitUntil(int64_t ns) = 0;
  // Any thread.
  virtual void Wake() = 0;
};

// Sleeps, and spins for the last 50 us at most, because a sleep's end is that uncertain.
class MonotonicClock final : public Clock {
 public:
  int64_t Now() override;
  void WaitUntil(int64_t ns) override;
  void Wake() override;

 private:
  bool Woken();

  std::mutex mutex_;
  std::condition_variable woken_condition_;
  bool woken_ = false;  // under mutex_
};

}  // namespace tramontane::load
