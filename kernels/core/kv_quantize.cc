#include "kernels/core/kv_quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/core/broken_rule.h"

namespace tramontane {
namespace {

constexpr float kLeastScale = 1e-5f;
// Adding it leaves the nearest integer, ties to even, in the low bits.
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23

// The scale as it is stored and read back.
float StoreScale(DType type, float scale, std::byte* to) {
  if (type == DType::kF32) {
    std::memcpy(to, &scale, sizeof(scale));
    return scale;
  }
  uint16_t bits = FloatToF16(scale);
  if (IsBroken(KvRule::kScaleRounding) && F16ToFloat(bits) > scale) --bits;
  std::memcpy(to, &bits, sizeof(bits));
  return F16ToFloat(bits);
}

float LoadScale(DType type, const std::byte* from) {
  if (type == DType::kF32) {
    float scale;
    std::memcpy(&scale, from, sizeof(scale));
    return scale;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return F16ToFloat(bits);
}

// NaN where one of them is: as whole numbers, magnitudes of NaN are the largest.
float LargestMagnitude(const float* row, int32_t count) {
  uint32_t largest = 0;
  for (int32_t i = 0; i < count; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(row[i]) << 1 >> 1);
  return std::bit_cast<float>(largest);
}

// In two's complement; its low bits count.
uint32_t Quantized(float number, float scale, float most) {
  const float ratio = number / scale;
  const float clamped = ratio < -most ? -most : ratio > most ? most : ratio;
  return std::bit_cast<uint32_t>(clamped + kRounder);
}

}  // namespace

void QuantizeKvRow(const Format& format, const float* row, int32_t count, std::byte* numbers,
                   std::byte* scales) {
  const auto group = static_cast<int32_t>(format.block_size());
  const bool nibbles = format.dtype == DType::kInt4;
  const float most = nibbles ? 7.0f : 127.0f;
  for (int32_t begin = 0; begin < count; begin += group) {
    const float* const from = row + begin;
    std::byte* const to = numbers + format.Bytes(begin);
    const float wanted = LargestMagnitude(from, group) / most;
    const float scale = StoreScale(format.scale, wanted < kLeastScale ? kLeastScale : wanted,
                                   scales + format.CompanionBytes(begin));
    if (!std::isfinite(scale)) {
      std::memset(to, 0, static_cast<size_t>(format.block_bytes));
    } else if (nibbles) {
      for (int32_t i = 0; i < group; i += 2) {
        const uint32_t low = Quantized(from[i], scale, most) & 0xfu;
        to[i / 2] = static_cast<std::byte>(low | (Quantized(from[i + 1], scale, most) & 0xfu) << 4);
      }
    } else {
      for (int32_t i = 0; i < group; ++i) to[i] = static_cast<std::byte>(Quantized(from[i], scale, most));
    }
  }
}

void DequantizeKvRow(const Format& format, const std::byte* numbers, const std::byte* scales, int32_t count,
                     float* row) {
  const bool nibbles = format.dtype == DType::kInt4;
  for (int32_t i = 0; i < count; ++i) {
    const float scale =
        LoadScale(format.scale, scales + int64_t{i >> format.block_log2} * format.companion_bytes);
    const auto byte = static_cast<int32_t>(numbers[nibbles ? i / 2 : i]);
    const int32_t code = nibbles ? byte >> i % 2 * 4 & 15 : byte;
    const int32_t sign = nibbles ? 8 : 128;
    const int32_t q = (code ^ sign) - sign;  // two's complement
    row[i] = static_cast<float>(q) * scale;
  }
}

float KvFp8Scale(const std::byte* scale) { return scale == nullptr ? 1.0f : LoadScale(DType::kF32, scale); }

void RoundKvRowToFp8(const float* row, int32_t count, float scale, std::byte* numbers) {
  for (int32_t i = 0; i < count; ++i) numbers[i] = static_cast<std::byte>(FloatToFp8E4M3(row[i] / scale));
}

void WidenKvRowOfFp8(const std::byte* numbers, int32_t count, float scale, float* row) {
  for (int32_t i = 0; i < count; ++i) row[i] = Fp8E4M3ToFloat(static_cast<uint8_t>(numbers[i])) * scale;
}

}  // namespace tramontane
