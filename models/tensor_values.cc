#include "models/tensor_values.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/core/block_types.h"

namespace tramontane {

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

void ReadValues(const TensorFile& file, const TensorInfo& tensor,
                const std::function<void(std::span<const float>)>& take) {
  constexpr int64_t kValues = 1 << 16;  // at a time: whole blocks of any type
  const Format& format = *tensor.format;
  int64_t left = 1;
  for (const int64_t size : tensor.shape) left *= size;
  std::vector<float> values(static_cast<size_t>(std::min(left, kValues)));
  TensorInfo part = tensor;
  for (; left > 0; left -= kValues) {
    const int64_t count = std::min(left, kValues);
    part.end = part.begin + format.Bytes(count);
    file.ReadAhead(part);
    DecodeValues(format, file.Data(part), count, values.data());
    take({values.data(), static_cast<size_t>(count)});
    file.Release(part.begin, part.end);
    part.begin = part.end;
  }
}

}  // namespace tramontane
