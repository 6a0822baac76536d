// Attention over latent pages on the device: its parameters and launch; see attention_latent.cu. Host side;
// any CUDA stream.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/attention.h"

namespace tramontane::cuda {

inline constexpr int kLeastLatentDim = 8;
inline constexpr int kMostLatentDim = 576;       // lanes of a row: ckv and kpe
inline constexpr int kMostLatentValueDim = 512;  // of these, the value's

inline constexpr int kLatentRows = kByRowTileRows;          // of a block
inline constexpr int kLatentKeys = 32;                      // a step of its loop
inline constexpr int kLatentStages = 2;                     // of keys in shared memory
inline constexpr int kLatentScoreStride = kLatentKeys + 8;  // floats, so that rows differ in banks

// Of a row of head_dim lanes in shared memory.
constexpr int32_t LatentRowBytes(int32_t head_dim) { return (head_dim + 63) / 64 * 128; }
// Shared memory of a block: rows of queries and of keys, and the scores.
constexpr int32_t LatentSharedBytes(int32_t head_dim) {
  return (kLatentRows + kLatentStages * kLatentKeys) * LatentRowBytes(head_dim) +
         kLatentRows * kLatentScoreStride * 4;
}

struct LatentAttentionParams {
  AttentionRunParams run;  // latent pages of bf16; tile_rows is kByRowTileRows
  AttentionMaskView mask;  // bits null: no sequence has one
};

// Queues a launch on `stream` (a cudaStream_t). 0 or the runtime's error. REQUIRES:
// LatentAttentionSupported.
int RunLatentAttention(const LatentAttentionParams& params, void* stream);

// Rows of whole pieces of 16 bytes. Any group.
constexpr bool LatentAttentionSupported(int32_t head_dim, int32_t value_dim) {
  return head_dim >= kLeastLatentDim && head_dim <= kMostLatentDim && head_dim % 8 == 0 &&
         value_dim >= kLeastLatentDim && value_dim <= head_dim && value_dim <= kMostLatentValueDim &&
         value_dim % 8 == 0;
}

}  // namespace tramontane::cuda
