#include "kernels/cuda/weight_packing.h"

#include <cstddef>
#include <cstring>

#include "kernels/core/check.h"

namespace tramontane::cuda {
namespace {

constexpr int64_t kInFeaturesMultiple = 8;  // 16-byte rows
constexpr int64_t kGateUpRun = 8;           // gate rows side by side, then as many of up

const std::byte* SourceRow(const LinearSource& source, int64_t row) {
  for (int32_t i = 0; i < source.part_count; ++i) {
    const WeightRows& part = source.parts[i];
    if (row < part.rows) {
      return static_cast<const std::byte*>(part.data) + part.format.Bytes(row * part.row_stride);
    }
    row -= part.rows;
  }
  TM_CHECK(false, "row beyond the parts of a source");
}

// The row of the source, parts one after the other, that stands in a packed row.
int64_t RowOfPacked(const LinearSource& source, int64_t packed) {
  if (source.layout == LinearLayout::kStacked) return packed;
  const int64_t output = packed / (2 * kGateUpRun) * kGateUpRun + packed % kGateUpRun;
  const bool is_up = packed % (2 * kGateUpRun) >= kGateUpRun;
  return is_up ? source.parts[0].rows + output : output;
}

void ConvertRow(const std::byte* row, DType dtype, int64_t count, uint16_t* out) {
  if (dtype == DType::kBf16) {
    std::memcpy(out, row, static_cast<size_t>(count) * sizeof(uint16_t));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == DType::kF32) {
      float value = 0.0f;
      std::memcpy(&value, row + i * int64_t{sizeof(value)}, sizeof(value));
      out[i] = FloatToBf16(value);
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, row + i * int64_t{sizeof(bits)}, sizeof(bits));
      out[i] = FloatToBf16(F16ToFloat(bits));
    }
  }
}

}  // namespace

int64_t PackedRows(const LinearSource& source) {
  int64_t rows = 0;
  for (int32_t i = 0; i < source.part_count; ++i) rows += source.parts[i].rows;
  return rows;
}

std::string WhyNotPackable(const LinearSource& source) {
  if (source.part_count < 1) return "a weight of no parts";
  if (source.in_features < 1 || source.in_features % kInFeaturesMultiple != 0) {
    return std::to_string(source.in_features) + " input features; the CUDA backend takes multiples of " +
           std::to_string(kInFeaturesMultiple);
  }
  for (int32_t i = 0; i < source.part_count; ++i) {
    const Format& format = source.parts[i].format;
    if (format != source.parts[0].format) return "parts of different formats";
    if (!format.plain()) return FormatName(format) + "; the CUDA backend reads plain bf16, f16 and f32";
    if (source.parts[i].rows < 1) return "a part of no rows";
  }
  if (source.layout == LinearLayout::kGateUp) {
    if (source.part_count != 2 || source.parts[0].rows != source.parts[1].rows) {
      return "gate and up must be two parts of equal rows";
    }
    if (source.parts[0].rows % kGateUpRun != 0) {
      return std::to_string(source.parts[0].rows) + " gate rows; the CUDA backend takes multiples of " +
             std::to_string(kGateUpRun);
    }
  }
  return "";
}

void PackRows(const LinearSource& source, int64_t begin, int64_t count, uint16_t* out) {
  for (int64_t row = begin; row < begin + count; ++row, out += source.in_features) {
    ConvertRow(SourceRow(source, RowOfPacked(source, row)), source.parts[0].format.dtype, source.in_features,
               out);
  }
}

}  // namespace tramontane::cuda
