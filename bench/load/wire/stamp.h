// The one clock of the load tool's stamps: CLOCK_MONOTONIC in nanoseconds. Any thread.
#pragma once

#include <cstdint>
#include <ctime>

namespace tramontane::load {

inline int64_t ToNs(const timespec& time) { return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec; }

inline int64_t NowNs() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return ToNs(time);
}

}  // namespace tramontane::load
