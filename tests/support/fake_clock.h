// A clock that a test moves by hand.
// One thread moves it; any reads it.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/threads/clock.h"

namespace tramontane {

class FakeClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_; }
  void Advance(int64_t ns) { now_ns_ += ns; }

 private:
  std::atomic<int64_t> now_ns_{1};  // 0 means "did not happen" in Timings
};

}  // namespace tramontane
