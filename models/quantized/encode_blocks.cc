#include "models/quantized/encode_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/core/format.h"

namespace tramontane {
namespace {

constexpr size_t kBlock = 32;
constexpr uint16_t kF16Exponent = 0x7c00;

// The number of largest size, the first of several.
float Largest(std::span<const float> values) {
  float largest = 0.0f;
  for (const float value : values) {
    if (std::abs(value) > std::abs(largest)) largest = value;
  }
  return largest;
}

// 0 where all numbers are so small that it has none: their scale is zero as an f16.
float Inverse(float scale) {
  const float inverse = 1.0f / scale;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

void EncodeQ8_0(std::span<const float> values, float scale, uint8_t* codes) {
  const float inverse = Inverse(scale);
  for (size_t i = 0; i < kBlock; ++i)
    codes[i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(values[i] * inverse)));
}

// Byte i has number i below and number i + 16 above.
void EncodeQ4_0(std::span<const float> values, float scale, uint8_t* codes) {
  const float inverse = Inverse(scale);
  const auto code = [&](size_t i) {
    return static_cast<uint8_t>(std::min(15.0f, std::trunc(values[i] * inverse + 8.5f)));
  };
  for (size_t i = 0; i < kBlock / 2; ++i)
    codes[i] = static_cast<uint8_t>(code(i) | code(i + kBlock / 2) << 4);
}

}  // namespace

bool EncodeBlocks(DType type, std::span<const float> values, std::byte* out) {
  TM_CHECK(type == DType::kQ8_0 || type == DType::kQ4_0, "%s is not written", DTypeName(type));
  TM_CHECK(values.size() % kBlock == 0, "%zu numbers are no whole blocks", values.size());
  for (; !values.empty(); values = values.subspan(kBlock), out += Format(type).block_bytes) {
    const std::span<const float> block = values.first(kBlock);
    if (!std::all_of(block.begin(), block.end(), [](float value) { return std::isfinite(value); }))
      return false;
    const float largest = Largest(block);
    const float scale = type == DType::kQ8_0 ? std::abs(largest) / 127.0f : largest / -8.0f;
    const uint16_t stored = FloatToF16(scale);
    if ((stored & kF16Exponent) == kF16Exponent) return false;
    uint8_t codes[kBlock];
    type == DType::kQ8_0 ? EncodeQ8_0(block, scale, codes) : EncodeQ4_0(block, scale, codes);
    std::memcpy(out, &stored, sizeof(stored));
    std::memcpy(out + sizeof(stored), codes, static_cast<size_t>(Format(type).block_bytes) - sizeof(stored));
  }
  return true;
}

}  // namespace tramontane
