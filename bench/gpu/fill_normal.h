// Fills device memory with bf16 numbers of a normal distribution, so that none pass through the host. Host
// side; any CUDA stream.
#pragma once

#include <cstdint>

namespace tramontane::gpu {

struct FillNormalParams {
  void* out = nullptr;  // [count] bf16, 16-byte aligned
  int64_t count = 0;
  float scale = 1.0f;  // the standard deviation
  uint64_t seed = 0;
};

// Queues the launch. Number i follows from seed, scale and i alone. 0 or the runtime's error.
int LaunchFillNormal(const FillNormalParams& params, void* stream);

}  // namespace tramontane::gpu
