// Where the engine reads time: one monotonic clock, handed in, so that tests move it by hand.
// Any thread.
#pragma once

#include <chrono>
#include <cstdint>

namespace tramontane {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowNs() const = 0;  // monotonic, nanoseconds since some start
};

class SteadyClock final : public Clock {
 public:
  int64_t NowNs() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace tramontane
