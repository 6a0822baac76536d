// Element types of tensors, and the one definition of bf16 and f16 rounding on the
// host. Any thread; pure functions.
#pragma once

#include <bit>
#include <cstdint>

namespace tramontane {

enum class DType : int32_t { kF32 = 0, kBf16 = 1, kF16 = 2 };

constexpr const char* DTypeName(DType dtype) {
  return dtype == DType::kF32 ? "f32" : dtype == DType::kBf16 ? "bf16" : "f16";
}

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

}  // namespace tramontane
