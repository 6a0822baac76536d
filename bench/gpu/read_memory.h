// Reads device memory and does nothing else: how fast that is bounds every kernel that reads far more than it
// writes. Host side; any CUDA stream.
#pragma once

#include <cstdint>

namespace tramontane::gpu {

inline constexpr int32_t kReadThreads = 256;  // of a block

struct ReadMemoryParams {
  const void* from = nullptr;  // 16-byte aligned
  int64_t bytes = 0;           // a multiple of 16
  int32_t blocks = 4096;
  uint32_t* out =
      nullptr;  // [blocks * kReadThreads]: the exclusive or of the words that each thread has read
};

// Queues the launch. 0 or the runtime's error.
int LaunchReadMemory(const ReadMemoryParams& params, void* stream);

}  // namespace tramontane::gpu
