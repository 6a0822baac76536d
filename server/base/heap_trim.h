// HeapTrim: gives memory back to the system that is free, and that the heap keeps in pieces between what is
// not: after a storm of small things these are gigabytes. It looks at what the process has, and trims when
// that has grown by kGrowthBytes since it was least, and a few times after, ever more rarely: a server
// whose load is steady never pays for it.
//
// One thread, that has nothing better to do.
#pragma once

#include <chrono>
#include <cstdint>

namespace tramontane {

// Of this process.
int64_t ResidentBytes();

class HeapTrim {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr int64_t kGrowthBytes = int64_t{128} << 20;
  static constexpr int64_t kWorthBytes = int64_t{16} << 20;
  static constexpr std::chrono::seconds kBetweenLooks{1};
  static constexpr std::chrono::seconds kShortestWait{10};  // by then what was in use may be free
  static constexpr std::chrono::seconds kLongestWait{160};

  // Bytes that the system has got back; 0 where it was not time, or nothing to do.
  int64_t Look(Time now);

 private:
  Time next_look_ = {};
  Time next_trim_ = Time::max();
  std::chrono::seconds wait_ = kShortestWait;  // until then
  int64_t least_bytes_ = INT64_MAX;            // resident, since the last trim
};

}  // namespace tramontane
