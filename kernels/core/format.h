// Format: how numbers are stored, of a weight or of keys and values. The only place that turns a count of
// numbers into bytes.
//
// Numbers lie in blocks of equal bytes, the last one filled up. A plain type is a block of one number. What
// belongs to a block and lies elsewhere, as the scales of integers may, is its companion:
//
//                                       numbers of a block   bytes of a block   bytes of its companion
//   f32                                                  1                  4                        0
//   bf16, f16                                            1                  2                        0
//   q8_0: 8 bits, a 16-bit scale within                 32                 34                        0
//   q4_k: 4 bits, scales of 32 within                  256                144                        0
//   int4 in groups of 128, an f16 scale within         128                 66                        0
//   keys and values as int8 in groups of 32             32                 32                        2
//   the same as fp8_e4m3                                 1                  1                        0
//
// Any thread; a plain value, crosses the library border of a backend.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/core/dtype.h"

namespace tramontane {

struct Format {
  // A type stands for its format. One in groups stands for the commonest: of 128, symmetric, with f16 scales,
  // or f32 scales for fp8_e4m3.
  constexpr Format(DType type)  // NOLINT(google-explicit-constructor)
      : dtype(type),
        block_log2(BlockLog2(type)),
        block_bytes(BlockBytes(type)),
        scale(type == DType::kFp8E4M3 ? DType::kF32 : DType::kF16) {}
  constexpr Format(DType stored, int32_t log2_of_block, int32_t bytes, int32_t bytes_apart)
      : dtype(stored), block_log2(log2_of_block), block_bytes(bytes), companion_bytes(bytes_apart) {}

  // A type in groups of 2^group_log2, 32 to 256. scales: kF16, kBf16 or kF32. zero_points: integers alone;
  // least_zero_point: of int4 alone.
  static constexpr Format InGroups(DType type, int32_t group_log2, DType scales, bool zero_points = false,
                                   int32_t rows_of_scale = 1, int32_t least_zero_point = 0) {
    Format format = type;
    format.block_log2 = group_log2;
    format.scale = scales;
    format.zero_points = zero_points ? 1 : 0;
    format.least_zero = least_zero_point;
    format.scale_rows = rows_of_scale;
    format.block_bytes = format.codes_at() + GroupCodeBytes(type, group_log2);
    return format;
  }

  DType dtype;                  // of what is stored
  int32_t block_log2 = 0;       // numbers of a block are a power of two, so that no address needs a division
  int32_t block_bytes = 0;      // of one block, without its companion
  int32_t companion_bytes = 0;  // of what belongs to one block and lies elsewhere
  // Of types in groups: how a block begins.
  DType scale = DType::kF16;
  int32_t zero_points = 0;  // 1: each group has one
  int32_t least_zero = 0;   // zero points of int4 are this, 0 or 1, and up to 15 more
  // Rows that have their scales in common: 1, or, of fp8_e4m3 with f32 scales, 2 (0 and 1, 2 and 3, ..). In a
  // file's order each row says its own all the same; what a backend packs may hold one of the two.
  int32_t scale_rows = 1;

  // Integers as keys and values are kept: signed, symmetric, in groups of 2^group_log2, whose scales of kF16
  // or kF32 are companions. kernels/core/kv_quantize.h says how they round.
  static constexpr Format WithScalesApart(DType type, int32_t group_log2, DType scales = DType::kF16) {
    Format format(type, group_log2, GroupCodeBytes(type, group_log2), scales == DType::kF32 ? 4 : 2);
    format.scale = scales;
    return format;
  }
  // Rows of fp8_e4m3 and nothing else, as keys and values are kept: what scales them is not theirs.
  static constexpr Format BareFp8() { return {DType::kFp8E4M3, 0, 1, 0}; }

  // Whether a number is a block by itself: f32, bf16 and f16, which all arithmetic here can read, and fp8 of
  // keys and values.
  constexpr bool plain() const { return block_log2 == 0; }
  constexpr bool in_groups() const { return dtype >= DType::kInt4; }
  // Whether it is a type by itself, or one in groups as InGroups makes them.
  constexpr bool well_formed() const {
    if (!in_groups()) return *this == Format(dtype);
    return block_log2 >= 5 && block_log2 <= 8 &&
           (scale == DType::kF32 || scale == DType::kBf16 || scale == DType::kF16) &&
           (zero_points == 0 || (zero_points == 1 && dtype != DType::kFp8E4M3)) &&
           (least_zero == 0 || (least_zero == 1 && zero_points == 1 && dtype == DType::kInt4)) &&
           (scale_rows == 1 || (scale_rows == 2 && scale == DType::kF32 && dtype == DType::kFp8E4M3)) &&
           *this == InGroups(dtype, block_log2, scale, zero_points != 0, scale_rows, least_zero);
  }
  // Bytes of a group before its codes.
  constexpr int32_t scale_bytes() const { return scale == DType::kF32 ? 4 : 2; }
  constexpr int32_t codes_at() const { return scale_bytes() + zero_points; }
  // Of `rows` rows that are packed together, an even number: scales that two rows share stand there once, and
  // zero points of int4 in four bits, less least_zero.
  constexpr int32_t packed_scale_bytes() const { return scale_bytes() >> (scale_rows - 1); }  // of a row
  static constexpr int32_t ZeroBits(DType type) { return type == DType::kInt4 ? 4 : 8; }
  constexpr int64_t PackedCodesAt(int64_t rows) const {
    return rows * packed_scale_bytes() + rows * zero_points * ZeroBits(dtype) / 8;
  }
  // The zero point of integers in groups that store none.
  constexpr int32_t middle() const { return dtype == DType::kInt4 ? 8 : 128; }
  constexpr int64_t block_size() const { return int64_t{1} << block_log2; }
  constexpr int64_t Blocks(int64_t count) const {
    return (count + (int64_t{1} << block_log2) - 1) >> block_log2;
  }
  // Bytes of `count` numbers side by side. As an offset: of the number with that index, the first of a block.
  constexpr int64_t Bytes(int64_t count) const { return Blocks(count) * block_bytes; }
  // The same of `rows` rows that are packed together.
  constexpr int64_t PackedBytes(int64_t count, int64_t rows) const {
    if (!in_groups()) return Bytes(count) * rows;
    return Blocks(count) * (PackedCodesAt(rows) + rows * (block_bytes - codes_at()));
  }
  constexpr int64_t CompanionBytes(int64_t count) const { return Blocks(count) * companion_bytes; }

  friend constexpr bool operator==(const Format&, const Format&) = default;

 private:
  static constexpr int32_t BlockLog2(DType type) {
    return type < DType::kQ8_0 ? 0 : type < DType::kQ4K ? 5 : type < DType::kInt4 ? 8 : 7;
  }
  static constexpr int32_t GroupCodeBytes(DType type, int32_t group_log2) {
    return (type == DType::kInt4 ? 1 : 2) << group_log2 >> 1;
  }
  static constexpr int32_t BlockBytes(DType type) {
    switch (type) {
      case DType::kF32:
        return 4;
      case DType::kBf16:
      case DType::kF16:
        return 2;
      case DType::kQ8_0:
        return 34;
      case DType::kQ4_0:
        return 18;
      case DType::kQ4_1:
        return 20;
      case DType::kQ5_0:
        return 22;
      case DType::kQ5_1:
        return 24;
      case DType::kQ4K:
        return 144;
      case DType::kQ5K:
        return 176;
      case DType::kQ6K:
        return 210;
      case DType::kInt4:
      case DType::kInt8:
        return 2 + GroupCodeBytes(type, BlockLog2(type));
      case DType::kFp8E4M3:
        return 4 + GroupCodeBytes(type, BlockLog2(type));
    }
    return 0;
  }
};

// "bf16", "q8_0", "int4 in groups of 128 with f16 scales and zero points"; "bf16 in blocks of 32" where the
// type does not say it.
std::string FormatName(const Format& format);

}  // namespace tramontane
