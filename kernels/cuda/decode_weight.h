// Weights in blocks, or in rows of fp8, as bf16 in a scratch, so that many rows are multiplied by cuBLASLt:
// how a weight is cut into slices, and the kernel that decodes one. Host side; any CUDA stream.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/core/format.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/linear_tile.h"

namespace tramontane::cuda {

// The fewest rows of x for which a weight is decoded. Up to there linear_tile.cu decodes it once, in
// registers, and writes it nowhere; from the second tile of rows on it does so again for each. On an H100 the
// gate and up of a 7B layer take 160 to 220 us for the first tile and 80 to 140 more for each that follows;
// decoding them takes about what 300 MB of traffic do, 120 us at 2.4 TB/s, and a product of bf16 90 to 110 us
// up to 256 rows. An estimate: the sum of both has not been measured.
inline constexpr int32_t kLeastDecodedRows = kTileLinearRows + 1;

// Bytes of bf16 that a slice has at most: its product shall find it in the L2 cache, of which an H100 has
// 50 MB, with rows of x and of outputs beside it.
inline constexpr int64_t kDecodedSliceBytes = int64_t{32} << 20;

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

// out[r][k] = bf16(W[r][k]), the numbers that linear_tile.cu multiplies by.
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
