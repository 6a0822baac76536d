// Sampling on the device: parameters and launches. Host side; any CUDA stream.
// Every launch returns 0 or the runtime's error.
#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tramontane::cuda {

struct SampleKernelParams {
  SampleParams call;  // REQUIRES: adjusted and forced tokens are in the rows
  float* adjusted;    // scratch [rows, vocab]; rows without adjustments and mask do not use theirs
  // Of a row: 1, or as SampleBlocks says. More than one have sampling_split.cu, and `split`.
  int32_t blocks = 1;
  void* split = nullptr;  // scratch [SplitSampleBytes()], zero before the first call that uses it
};

// What a logprob is off by at most before its one rounding to f32, of vocabularies of up to 2^20 tokens (V):
//   - a weight e^(logit - highest) is estimated, off by less than 2^-28 of it (WeightEstimates);
//   - it is rounded down to a multiple of 2^-k, k >= 61 - log2(V): V weights lose less than V^2 * 2^-61 of
//     their sum, which is 1 at least, and that is 2^-21 at most; the sum of the multiples is exact;
//   - so the sum is off by less than 2^-20 of itself, and its logarithm, in f64, by as much.
inline constexpr double kMostLogprobError = 0x1p-20;

// Of SampleKernelParams::adjusted.
constexpr int64_t SampleScratchBytes(int64_t rows, int64_t vocab) {
  return rows * vocab * static_cast<int64_t>(sizeof(float));
}

// Several blocks a row: what it takes, and of how many it is worth it.
inline constexpr int32_t kMostSplitRows = 32;
inline constexpr int32_t kMostSampleBlocks = 16;  // of a row
inline constexpr int32_t kLeastSampleBlocks = 4;  // fewer do not make up for two launches more
inline constexpr int32_t kLeastSliceTokens = 8192;
constexpr int32_t SampleBlocks(int64_t rows, int64_t vocab, int32_t multiprocessors) {
  if (rows < 1 || rows > kMostSplitRows) return 1;
  int64_t blocks = kMostSampleBlocks;
  if (multiprocessors / rows < blocks) blocks = multiprocessors / rows;
  if (vocab / kLeastSliceTokens < blocks) blocks = vocab / kLeastSliceTokens;
  return blocks < kLeastSampleBlocks ? 1 : static_cast<int32_t>(blocks);
}
int64_t SplitSampleBytes();

int LaunchSample(const SampleKernelParams& params, void* stream);
int LaunchSplitSample(const SampleKernelParams& params, void* stream);  // LaunchSample where blocks > 1
int LaunchAdvance(const AdvanceParams& params, void* stream);

}  // namespace tramontane::cuda
