// Linear layers over weights in blocks for more than 16 rows, where these are not decoded as a whole
// (decode_weight.h), and those of experts: parameters and launch.
// Host side; any CUDA stream.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/moe.h"

namespace tramontane::cuda {

inline constexpr int32_t kTileLinearRows = kMoeTileRows;  // of x that share a pass over the weight

// out[place] = epilogue(x[place / places_of_a_row] W^T), W in blocks (blocks.h).
struct TileLinearParams {
  const void* weights[kMaxExperts];  // W of each expert (null: no work), or one; kSwiGlu: rows as in
                                     // linear_small.h
  const void* x;                     // [.., in_features] bf16, rows x_stride apart, 16-byte aligned
  void* out;                         // kSwiGlu: half as wide
  const int32_t* order;  // experts: places by expert (MoeGroupParams); null: places 0..rows-1, one W
  const MoeTile* tiles;  // with `order`
  int64_t x_stride;
  int64_t out_stride;
  int32_t max_tiles;  // with `order`
  int32_t rows;       // without
  int32_t places_of_a_row;
  int32_t in_features;   // whole units, of groups whole tiles
  int32_t out_features;  // kSwiGlu: a multiple of 16
  Epilogue epilogue;
  DType out_dtype;  // bf16, or f32 for kNone
  Format weight_format = DType::kBf16;
  const float* row_scales = nullptr;  // as in linear_small.h; without `order`
  bool onto_gate = false;  // kNone in bf16: out is a gate, and becomes SwiGLU of it and of the product
};

// Warps of a block, each of which makes 16 outputs: as many as leave the device enough blocks.
int32_t TileLinearWarps(const TileLinearParams& params);
int LaunchTileLinear(const TileLinearParams& params, void* stream);

}  // namespace tramontane::cuda
