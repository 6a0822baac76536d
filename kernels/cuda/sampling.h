// Sampling on the device: parameters and launches. Host side; any CUDA stream.
// Every launch returns 0 or the runtime's error.
#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tramontane::cuda {

struct SampleKernelParams {
  SampleParams call;  // REQUIRES: adjusted and forced tokens are in the vocabulary
  float* adjusted;    // scratch [rows, vocab]; rows without adjustments and mask do not use theirs
};

// Of SampleKernelParams::adjusted.
constexpr int64_t SampleScratchBytes(int64_t rows, int64_t vocab) {
  return rows * vocab * static_cast<int64_t>(sizeof(float));
}

int LaunchSample(const SampleKernelParams& params, void* stream);
int LaunchAdvance(const AdvanceParams& params, void* stream);

}  // namespace tramontane::cuda
