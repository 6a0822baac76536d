// A clock that a test moves by hand.
// The thread that moves it, and any reader of the same thread.
#pragma once

#include <cstdint>

#include "engine/clock.h"

namespace tramontane {

class FakeClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_; }
  void Advance(int64_t ns) { now_ns_ += ns; }

 private:
  int64_t now_ns_ = 1;  // 0 means "did not happen" in Timings
};

}  // namespace tramontane
