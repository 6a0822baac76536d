// Linear layers for 1 to 16 rows at memory speed: parameters and launch. Host side; any CUDA stream.
#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tramontane::cuda {

inline constexpr int kSmallLinearRows = 16;
// A fused norm saves a launch, but every block normalises all rows again, for its 16 outputs. On an H100 the
// gate and up of Mistral 7B take 88 us fused and 93 apart of one row, 90 and 93 of two, 100 and 93 of four.
inline constexpr int32_t kFusedNormRows = 2;
// A weight in blocks is a quarter as large or half: the same share of its bytes is one row's.
inline constexpr int32_t kFusedNormRowsOverBlocks = 1;

// out = epilogue(prologue(x) W^T); see LinearParams for what prologue and epilogue mean.
struct SmallLinearParams {
  const void* x;             // [.., in_features] bf16, rows x_stride apart, 16-byte aligned
  const int32_t* x_rows;     // [rows], or null for 0..rows-1
  const float* norm_weight;  // [in_features] with Prologue::kRmsNorm
  const void* weight;  // [out_features, in_features], row-major bf16 or fp8, or units (blocks.h). For kSwiGlu
                       // rows come in sixteens: 8 of gate, then the 8 of up
  void* out;           // kNone: [rows, out_features]; kAddResidual: the same, added to; kSwiGlu: half as wide
  int64_t x_stride;
  int64_t out_stride;
  int32_t rows;          // 1..kSmallLinearRows
  int32_t in_features;   // a multiple of 8 of bf16, of 32 of groups, else whole units
  int32_t out_features;  // a multiple of 16 for kSwiGlu
  float epsilon;
  Prologue prologue;
  Epilogue epilogue;
  DType out_dtype;  // bf16, or f32 for kNone
  Format weight_format = DType::kBf16;
  // [out_features] of a weight of fp8 that stands row by row, whose groups say how K is dealt; null: it does
  // not. out_features are a multiple of 16 then.
  const float* row_scales = nullptr;
};

// Whether the kernel takes such a call; a norm is fused while the normalised rows fit in shared memory, over
// a weight in blocks of up to 8 rows.
bool SmallLinearSupported(const SmallLinearParams& params);
int LaunchSmallLinear(const SmallLinearParams& params, void* stream);

}  // namespace tramontane::cuda
