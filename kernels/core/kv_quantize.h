// Rows of keys and values as small numbers. The definition: a row's bytes follow from the row alone, and
// every backend is held to them. Any thread; pure functions.
//
// int8 and int4 (Format::WithScalesApart): symmetric, one scale for each group of neighbours. With
// m = 2^(bits - 1) - 1, of a group:
//
//   scale = max(max |x| / m, 1e-5)              in f32, then rounded to the type of the scales
//   q     = clamp(round(x / scale), -m, m)      by that rounded scale; f32 division, ties to even
//   x'    = q * scale                           in f32
//
// 8 bits are a byte each; 4 bits two a byte, the even one low, in two's complement. The rounding is that of
// OpenPPL's KeyValueCache. A group whose scale overflows, or that holds NaN, reads back as NaN.
//
// fp8 (Format::BareFp8): e4m3 of x / scale, nearest even, saturating; the scale is given.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/format.h"

namespace tramontane {

// Numbers of a group of int8 or int4 in our own pages: 2^3 to 2^7. What others laid out may have smaller
// ones.
inline constexpr int32_t kMinKvGroupLog2 = 3;
inline constexpr int32_t kMaxKvGroupLog2 = 7;

// Whether keys and values may be stored so: f32, bf16, f16, or as said above.
constexpr bool IsKvElement(const Format& format) {
  if (format.dtype == DType::kInt8 || format.dtype == DType::kInt4) {
    return format.block_log2 >= 1 && format.block_log2 <= kMaxKvGroupLog2 &&
           (format.scale == DType::kF16 || format.scale == DType::kF32) &&
           format == Format::WithScalesApart(format.dtype, format.block_log2, format.scale);
  }
  return format == Format::BareFp8() || (format.plain() && format == Format(format.dtype));
}

// row [count] to numbers [format.Bytes(count)] and scales [format.CompanionBytes(count)]. REQUIRES: int8 or
// int4 with scales apart; whole groups.
void QuantizeKvRow(const Format& format, const float* row, int32_t count, std::byte* numbers,
                   std::byte* scales);
void DequantizeKvRow(const Format& format, const std::byte* numbers, const std::byte* scales, int32_t count,
                     float* row);

// The f32 scale of fp8 vectors at `scale`, 1 where there is none (null).
float KvFp8Scale(const std::byte* scale);
// row [count] to numbers [count], and back. scale > 0.
void RoundKvRowToFp8(const float* row, int32_t count, float scale, std::byte* numbers);
void WidenKvRowOfFp8(const std::byte* numbers, int32_t count, float scale, float* row);

}  // namespace tramontane
