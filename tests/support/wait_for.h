// What another thread is about to bring about.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

namespace tramontane {

// Looks every millisecond; fails the test after a minute.
inline void WaitFor(const std::function<bool()>& holds) {
  constexpr int64_t kMinuteMs = 60'000;
  for (int64_t waited_ms = 0; !holds(); ++waited_ms) {
    ASSERT_LT(waited_ms, kMinuteMs);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace tramontane
