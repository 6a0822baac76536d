// How weights in blocks (kernels/core/block_types.h) stand in device memory: the same bits, dealt anew so
// that a warp reads them in one run and a lane finds the fragments of its mma in them. Host and device; pure.
//
// A unit is 16 rows by one, two, four or eight tiles of 32 numbers along K: whole blocks of 16 rows, the last
// of which may reach beyond K. Its lane (g, t) has
// rows g and g + 8 (halves 0 and 1) and numbers 8t .. 8t + 7 of each tile. Units of the same 16 rows follow
// each other along K; after them come the next 16 rows, the last of which may be zeros.
//
//   unit     runs, then the scales of all its rows
//   run      one tile, of K types two: the low bits of 32 lanes, then the high bits of 32 lanes
//   low      8 bits: 16 bytes a lane: [half][8 numbers]
//            4 bits: 8 bytes a lane and tile: [tile][half][4 bytes], byte i holds numbers i and, above it,
//            i + 4
//   high     words with one bit, or two, in each byte for each of four numbers; the place in the byte
//            says whose:
//            place = 2 half + (0 for numbers 0-3, 1 for 4-7), + 4 for the second tile of a run
//            1 bit, runs of one tile: two lanes share a word, the odd one has the places from 4 on
//            2 bits: a word a lane and tile, bits 2 place and 2 place + 1
//   scales   d: [g][half] f16; d and m: [g][half][d, m]; q4_k and q5_k: [half][g] the 16 bytes as stored;
//            q6_k: [half][g] 16 x i8, then d: [g][half]; groups: s: [g][half], of scales that two rows share
//            [g / 2][half], then z: int8 [g][half], int4 [g], half 0 in the low bits, less least_zero
#pragma once

#include <cstdint>

#include "kernels/core/format.h"

namespace tramontane::cuda {

inline constexpr int kUnitRows = 16;
inline constexpr int kTileNumbers = 32;  // of a row that feed two mma

struct UnitLayout {
  int tiles = 0;  // of a unit; 0: the type does not stand in blocks
  int run_tiles = 0;
  int low_bits = 0;
  int high_bits = 0;
  int scale_bytes = 0;  // of a unit

  constexpr int numbers() const { return tiles * kTileNumbers; }  // of a row
  constexpr int runs() const { return tiles / run_tiles; }
  constexpr int low_bytes() const { return run_tiles * kTileNumbers * kUnitRows * low_bits / 8; }  // of a run
  constexpr int high_bytes() const { return run_tiles * kTileNumbers * kUnitRows * high_bits / 8; }
  constexpr int run_bytes() const { return low_bytes() + high_bytes(); }
  constexpr int scales_at() const { return runs() * run_bytes(); }
  constexpr int bytes() const { return scales_at() + scale_bytes; }
  // Along a row.
  constexpr int64_t units(int64_t in_features) const { return (in_features + numbers() - 1) / numbers(); }
};

constexpr UnitLayout LayoutOf(const Format& format) {
  const int group_tiles = format.in_groups() ? static_cast<int>(format.block_size() / kTileNumbers) : 0;
  switch (format.dtype) {
    case DType::kQ8_0:
      return {1, 1, 8, 0, kUnitRows * 2};
    case DType::kQ4_0:
      return {1, 1, 4, 0, kUnitRows * 2};
    case DType::kQ4_1:
      return {1, 1, 4, 0, kUnitRows * 4};
    case DType::kQ5_0:
      return {1, 1, 4, 1, kUnitRows * 2};
    case DType::kQ5_1:
      return {1, 1, 4, 1, kUnitRows * 4};
    case DType::kQ4K:
      return {8, 2, 4, 0, kUnitRows * 16};
    case DType::kQ5K:
      return {8, 2, 4, 1, kUnitRows * 16};
    case DType::kQ6K:
      return {8, 2, 4, 2, kUnitRows * 18};
    case DType::kInt4:
      return {group_tiles, 1, 4, 0, static_cast<int>(format.PackedCodesAt(kUnitRows))};
    case DType::kInt8:
    case DType::kFp8E4M3:
      return {group_tiles, 1, 8, 0, static_cast<int>(format.PackedCodesAt(kUnitRows))};
    case DType::kF32:
    case DType::kBf16:
    case DType::kF16:
      break;
  }
  return {};
}

// Whether products take codes and scale the sums of a tile, whose row has one scale and no minimum; of other
// types they take numbers that are rounded to bf16 (blocks.cuh).
constexpr bool ScalesSums(DType type) {
  return type == DType::kQ8_0 || type == DType::kQ4_0 || type == DType::kQ5_0 || type >= DType::kInt4;
}

// Bytes of a matrix in blocks, its rows filled up to sixteens; 0 where the type does not stand in blocks.
constexpr int64_t UnitsBytes(const Format& format, int64_t rows, int64_t in_features) {
  const UnitLayout layout = LayoutOf(format);
  if (layout.tiles == 0) return 0;
  return (rows + kUnitRows - 1) / kUnitRows * layout.units(in_features) * layout.bytes();
}

}  // namespace tramontane::cuda
