// Weights in blocks, or in rows of fp8, as bf16 in a scratch, so that many rows are multiplied by cuBLASLt:
// how a weight is cut into slices, and the kernel that decodes one. Host side; any CUDA stream.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/core/format.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/linear_small.h"
#include "kernels/cuda/linear_tile.h"

namespace tramontane::cuda {

// The fewest rows of x for which a weight is decoded. linear_tile.cu decodes it in registers and writes it
// nowhere, but does so again for each further tile of rows, and a warp goes along the whole of K for its
// outputs, step after step. On an H200, by tiles and decoded: the gate and up of a 7B layer in q4_k 159 and
// 151 us with 64 rows, 256 and 179 with 128, 872 and 263 with 512; its down 496 and 84, 520 and 97, 439 and
// 149.
inline constexpr int32_t kLeastDecodedRows = kSmallLinearRows + 1;
// The fewest outputs of a weight that is not decoded for one tile of rows.
inline constexpr int64_t kTiledOutputs = 16384;

// Bytes of bf16 that a slice has at most, so that much of it is still in the L2 cache (50 MB of an H100) when
// it is multiplied, and yet a product has tiles enough for the device. On an H200 in slices of 16, 32, 64 and
// 128 MiB, fp8 in groups: gate and up with 128 rows 230, 201, 185 and 172 us, with 2,048 822, 832, 838 and
// 837; down with 512 rows 184, 161, 142 and 128.
inline constexpr int64_t kDecodedSliceBytes = int64_t{64} << 20;

// Rows of a weight that are decoded together. All slices but the last have the same number, so that there
// are at most two shapes to plan products for.
struct WeightSlices {
  int64_t rows = 0;       // of each but the last: a multiple of 16, of 256 where a slice has room for so many
  int64_t last_rows = 0;  // 1 to rows, of a weight that is one slice all it has
  int64_t count = 0;      // 0: not even 16 rows fit

  int64_t RowsOf(int64_t slice) const { return slice + 1 < count ? rows : last_rows; }
};

constexpr WeightSlices SlicesOf(int64_t out_features, int64_t in_features, int64_t slice_bytes) {
  constexpr int64_t kManyRows = 256;  // a multiple of the tiles of any product
  int64_t most = slice_bytes / (in_features * 2);
  const int64_t multiple = most >= kManyRows ? kManyRows : kUnitRows;
  most -= most % multiple;
  if (most == 0) return {};
  if (out_features <= most) return {out_features, out_features, 1};
  const int64_t least = (out_features + most - 1) / most, even = (out_features + least - 1) / least;
  const int64_t rows = (even + multiple - 1) / multiple * multiple;
  const int64_t count = (out_features + rows - 1) / rows;
  return {rows, out_features - (count - 1) * rows, count};
}

// Of the scratch for a slice: its rows are filled up to sixteens.
constexpr int64_t DecodedBytes(int64_t rows, int64_t in_features) {
  return (rows + kUnitRows - 1) / kUnitRows * kUnitRows * in_features * 2;
}

// Of one that holds the slices of any weight of up to so many numbers, in rows of up to in_features.
constexpr int64_t DecodedScratchBytes(int64_t numbers, int64_t in_features, int64_t slice_bytes) {
  if (numbers == 0) return 0;
  return 2 * std::min(slice_bytes / 2, numbers + (kUnitRows - 1) * in_features);
}

// out[r][k] = bf16(W[r][k]): Decode of blocks.cuh.
struct DecodeWeightParams {
  const void* weight;   // units (blocks.h) from a row that begins sixteen, or rows of e4m3 with row_scales
  void* out;            // [rows filled up to sixteens, in_features] bf16, 16-byte aligned
  int32_t rows;         // with row_scales a multiple of 16
  int32_t in_features;  // whole units, of groups whole tiles
  Format format = DType::kBf16;
  const float* row_scales = nullptr;  // [rows], as in linear_small.h
};

int LaunchDecodeWeight(const DecodeWeightParams& params, void* stream);

}  // namespace tramontane::cuda
