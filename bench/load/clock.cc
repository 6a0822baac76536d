#include "bench/load/clock.h"

#include <chrono>
#include <utility>

namespace tramontane::load {
namespace {

constexpr int64_t kSpinNs = 50'000;

}  // namespace

// steady_clock is CLOCK_MONOTONIC wherever this is built (Linux).
int64_t MonotonicClock::Now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void MonotonicClock::WaitUntil(int64_t ns) {
  {
    std::unique_lock lock(mutex_);
    const std::chrono::steady_clock::time_point sleep_end{std::chrono::nanoseconds(ns - kSpinNs)};
    const bool early = woken_condition_.wait_until(lock, sleep_end, [this] { return woken_; });
    if (early) {
      woken_ = false;
      return;
    }
  }
  while (Now() < ns) {
    if (Woken()) return;
  }
}

bool MonotonicClock::Woken() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(woken_, false);
}

void MonotonicClock::Wake() {
  {
    const std::scoped_lock lock(mutex_);
    woken_ = true;
  }
  woken_condition_.notify_one();
}

}  // namespace tramontane::load
