// Element types of tensors, and the one definition of bf16 and f16 rounding on the host. Any thread; pure
// functions.
//
// Arithmetic knows f32, bf16 and f16. The others are how weights are stored: blocks of small numbers with
// their scales, each block by itself (block_types.h).
#pragma once

#include <bit>
#include <cstdint>

namespace tramontane {

enum class DType : int32_t {
  kF32 = 0,
  kBf16 = 1,
  kF16 = 2,
  // GGUF's, in blocks of 32.
  kQ8_0 = 3,
  kQ4_0 = 4,
  kQ4_1 = 5,
  kQ5_0 = 6,
  kQ5_1 = 7,
  // In blocks of 256.
  kQ4K = 8,
  kQ5K = 9,
  kQ6K = 10,
  // In groups, whose size a Format says.
  kInt4 = 11,
  kInt8 = 12,
  kFp8E4M3 = 13,
};

// "bf16", "q4_k"
const char* DTypeName(DType dtype);

// bf16 <-> f32. To bf16 rounds to nearest even; NaN stays NaN.
constexpr float Bf16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
constexpr uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
// The value that a store to bf16 and a load back gives.
constexpr float RoundToBf16(float value) { return Bf16ToFloat(FloatToBf16(value)); }

float F16ToFloat(uint16_t bits);
uint16_t FloatToF16(float value);  // nearest even; overflow to infinity; NaN stays NaN

// A sign, 4 bits of exponent, 3 of mantissa; 448 is the largest. No infinity: 0x7f and 0xff are NaN.
float Fp8E4M3ToFloat(uint8_t bits);
// Nearest, ties to the even code; beyond 448 it stays there, infinities too. The sign of zero is kept; NaN is
// 0x7f.
uint8_t FloatToFp8E4M3(float value);

}  // namespace tramontane
