// TensorMap: how the TMA unit of sm_90a finds boxes of a tensor in global memory. Plain values; a kernel gets
// a map among its parameters (TM_GRID_CONSTANT). Host side; any thread.
#pragma once

#include <cstdint>

namespace tramontane::cuda {

inline constexpr int kTensorMapDimensions = 5;

// What the driver makes of a TensorMapShape; only MakeTensorMap writes it, only the TMA unit reads it.
struct alignas(128) TensorMap {
  uint64_t opaque[16];
};

// A tensor of bf16 and the boxes that are copied out of it; the first dimension lies side by side.
struct TensorMapShape {
  const void* base = nullptr;  // 16-byte aligned
  int64_t sizes[kTensorMapDimensions] = {};
  int64_t stride_bytes[kTensorMapDimensions - 1] = {};  // of all but the first; multiples of 16
  int32_t box[kTensorMapDimensions] = {};               // the first is 64
};

}  // namespace tramontane::cuda
