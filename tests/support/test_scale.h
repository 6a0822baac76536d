// How much of a long test to run: its full count on a plain build, a share of it under a sanitizer.
// TRAMONTANE_TEST_SCALE holds the share in percent; unset means 100. Callable from any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace tramontane {

// The share in percent, at least 1. Text that is not a positive number counts as 100: never less than was
// asked.
inline int64_t TestScalePercent() {
  const char* text = std::getenv("TRAMONTANE_TEST_SCALE");
  if (text == nullptr) return 100;
  const int64_t percent = std::strtoll(text, nullptr, 10);
  return percent >= 1 ? percent : 100;
}

// `full` scaled by TRAMONTANE_TEST_SCALE, but at least `least`: the smallest count at which the test still
// shows what its name claims.
inline int64_t ScaledCount(int64_t full, int64_t least = 1) {
  return std::max(least, full * TestScalePercent() / 100);
}

}  // namespace tramontane
