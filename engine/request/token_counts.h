// Tokens of all requests that count together, those of one key for example. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace tramontane {

struct TokenCounts {
  std::atomic<int64_t> prompt{0};      // each prompt once, whether it was cached or not
  std::atomic<int64_t> generation{0};  // delivered
};

}  // namespace tramontane
