#include "server/base/heap_trim.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace tramontane {

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size_pages = 0, resident_pages = 0;
  statm >> size_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

int64_t HeapTrim::Look(Time now) {
  if (now < next_look_) return 0;
  next_look_ = now + kBetweenLooks;
  const int64_t bytes = ResidentBytes();
  least_bytes_ = std::min(least_bytes_, bytes);
  const bool has_grown = bytes - least_bytes_ >= kGrowthBytes;
  if (!has_grown && now < next_trim_) return 0;
  malloc_trim(0);
  least_bytes_ = ResidentBytes();
  const int64_t given_back = std::max<int64_t>(0, bytes - least_bytes_);
  wait_ = has_grown || given_back >= kWorthBytes ? kShortestWait : 2 * wait_;
  next_trim_ = wait_ <= kLongestWait ? now + wait_ : Time::max();
  return given_back;
}

}  // namespace tramontane
