#include "models/tensor_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string_view>
#include <vector>

#include "kernels/core/block_types.h"

namespace tramontane {
namespace {

template <typename T>
float Whole(const std::byte* at) {
  T number;
  std::memcpy(&number, at, sizeof(number));
  return static_cast<float>(number);
}

float Fp8E4M3(const std::byte* at) { return Fp8E4M3ToFloat(std::to_integer<uint8_t>(*at)); }

// The upper byte of an f16. NaN keeps its sign and nothing else, as that of e4m3.
float Fp8E5M2(const std::byte* at) {
  const auto code = std::to_integer<uint32_t>(*at);
  if ((code & 0x7fu) > 0x7cu) return std::bit_cast<float>((code & 0x80u) << 24 | 0x7fc00000u);
  return F16ToFloat(static_cast<uint16_t>(code << 8));
}

// A power of two from 2^-127 on; the last code is NaN.
float Fp8E8M0(const std::byte* at) {
  const auto code = std::to_integer<uint32_t>(*at);
  return code == 0xff ? std::bit_cast<float>(0x7fc00000u) : std::ldexp(1.0f, static_cast<int>(code) - 127);
}

// Types of safetensors that no weight has by itself, and whose every number is one of f32.
struct NarrowType {
  std::string_view name;
  int64_t bytes;  // of a number
  float (*value)(const std::byte*);
};
constexpr NarrowType kNarrowTypes[] = {
    {"F8_E4M3", 1, Fp8E4M3},    {"F8_E5M2", 1, Fp8E5M2},     {"F8_E8M0", 1, Fp8E8M0},
    {"I8", 1, Whole<int8_t>},   {"U8", 1, Whole<uint8_t>},   {"BOOL", 1, Whole<uint8_t>},
    {"I16", 2, Whole<int16_t>}, {"U16", 2, Whole<uint16_t>},
};

// Null where there is none of that name.
const NarrowType* FindNarrowType(std::string_view name) {
  const auto* found = std::find_if(std::begin(kNarrowTypes), std::end(kNarrowTypes),
                                   [&](const NarrowType& type) { return type.name == name; });
  return found == std::end(kNarrowTypes) ? nullptr : found;
}

}  // namespace

void DecodeValues(const Format& format, const std::byte* bytes, int64_t count, float* out) {
  if (!format.plain()) {
    DecodeBlocks(format, bytes, count, out);
    return;
  }
  if (format.dtype == DType::kF32) {
    std::memcpy(out, bytes, static_cast<size_t>(format.Bytes(count)));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes + format.Bytes(i), sizeof(bits));
    out[i] = format.dtype == DType::kBf16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
  }
}

bool HasValues(const TensorInfo& tensor) {
  return tensor.format.has_value() || FindNarrowType(tensor.dtype_name) != nullptr;
}

void ReadValues(const TensorFile& file, const TensorInfo& tensor,
                const std::function<void(std::span<const float>)>& take) {
  constexpr int64_t kValues = 1 << 16;  // at a time: whole blocks of any type
  const NarrowType* narrow = tensor.format ? nullptr : FindNarrowType(tensor.dtype_name);
  int64_t left = 1;
  for (const int64_t size : tensor.shape) left *= size;
  std::vector<float> values(static_cast<size_t>(std::min(left, kValues)));
  TensorInfo part = tensor;
  for (; left > 0; left -= kValues) {
    const int64_t count = std::min(left, kValues);
    part.end = part.begin + (narrow != nullptr ? count * narrow->bytes : tensor.format->Bytes(count));
    file.ReadAhead(part);
    const std::byte* data = file.Data(part);
    if (narrow != nullptr) {
      for (int64_t i = 0; i < count; ++i)
        values[static_cast<size_t>(i)] = narrow->value(data + i * narrow->bytes);
    } else {
      DecodeValues(*tensor.format, data, count, values.data());
    }
    take({values.data(), static_cast<size_t>(count)});
    file.Release(part.begin, part.end);
    part.begin = part.end;
  }
  // What the kernel has mapped once more, around places that were read later.
  file.Release(tensor.begin, tensor.end);
}

}  // namespace tramontane
