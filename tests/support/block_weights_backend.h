// BlockWeightsBackend: gives another backend the weights of a model in blocks, so that a model file of plain
// numbers becomes one of Q8_0 or Q4_K; or their values in f32, for a backend that must see the same. One
// thread. Borrows the other backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/format.h"
#include "tests/support/counting_backend.h"

namespace tramontane {

namespace block_weights {

inline void PutHalf(std::byte* at, float value) {
  const uint16_t bits = FloatToF16(value);
  std::memcpy(at, &bits, sizeof(bits));
}

inline int Rounded(float value, int least, int most) {
  return std::clamp(static_cast<int>(std::lround(value)), least, most);
}

// Scales are powers of two: numbers that bf16 holds exactly.
inline void EncodeQ8(const float* values, std::byte* block) {
  float largest = 1e-3f;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(values[i]));
  const float scale = std::exp2(std::ceil(std::log2(largest / 127.0f)));
  PutHalf(block, scale);
  for (int i = 0; i < 32; ++i) block[2 + i] = static_cast<std::byte>(Rounded(values[i] / scale, -127, 127));
}

// Groups of 32 from their least number, at most 0, to their largest, in scales and minima of 6 bits.
inline void EncodeQ4K(const float* values, std::byte* block) {
  float range[8], below[8], most_range = 1e-6f, most_below = 1e-6f;
  for (int group = 0; group < 8; ++group) {
    const auto [least, largest] = std::minmax_element(values + 32 * group, values + 32 * group + 32);
    below[group] = std::max(0.0f, -*least);
    range[group] = std::max(1e-6f, *largest + below[group]);
    most_range = std::max(most_range, range[group]);
    most_below = std::max(most_below, below[group]);
  }
  std::memset(block, 0, 144);
  const float scale = most_range / 15.0f / 63.0f, minimum = most_below / 63.0f;
  PutHalf(block, scale);
  PutHalf(block + 2, minimum);
  for (int group = 0; group < 8; ++group) {
    const int s = Rounded(range[group] / 15.0f / scale, 1, 63), t = Rounded(below[group] / minimum, 0, 63);
    std::byte* scales = block + 4;
    if (group < 4) {
      scales[group] |= static_cast<std::byte>(s);
      scales[4 + group] |= static_cast<std::byte>(t);
    } else {
      scales[4 + group] |= static_cast<std::byte>((s & 15) | (t & 15) << 4);
      scales[group - 4] |= static_cast<std::byte>(s >> 4 << 6);
      scales[group] |= static_cast<std::byte>(t >> 4 << 6);
    }
    for (int i = 0; i < 32; ++i) {
      const float above = values[32 * group + i] + minimum * static_cast<float>(t);
      const int q = Rounded(above / (scale * static_cast<float>(s)), 0, 15);
      block[16 + group / 2 * 32 + i] |= static_cast<std::byte>(q << 4 * (group % 2));
    }
  }
}

inline std::vector<std::byte> Encode(DType type, const std::vector<float>& values) {
  const Format format = type;
  const auto count = static_cast<int64_t>(values.size());
  std::vector<std::byte> blocks(static_cast<size_t>(format.Bytes(count)));
  for (int64_t i = 0; i < count; i += format.block_size()) {
    std::byte* block = blocks.data() + format.Bytes(i);
    if (type == DType::kQ8_0) {
      EncodeQ8(values.data() + i, block);
    } else {
      TM_CHECK(type == DType::kQ4K, "%s", DTypeName(type));
      EncodeQ4K(values.data() + i, block);
    }
  }
  return blocks;
}

}  // namespace block_weights

class BlockWeightsBackend final : public CountingBackend {
 public:
  BlockWeightsBackend(Backend& inner, DType type) : CountingBackend(inner), type_(type) {}

  int64_t in_blocks = 0;  // parts of weights so far

  int64_t WorkspaceBytes(const StepMaxima& maxima) const override {
    return CountingBackend::WorkspaceBytes(InBlocks(maxima));
  }
  OpCode Reserve(const StepMaxima& maxima) override { return CountingBackend::Reserve(InBlocks(maxima)); }

  OpCode PackLinear(const LinearSource& source, WeightHandle* out) override {
    std::vector<std::vector<std::byte>> memory;
    std::vector<WeightRows> parts;
    for (int32_t i = 0; i < source.part_count; ++i) {
      memory.push_back(PartOf(source, i));
      parts.push_back({memory.back().data(), type_, source.parts[i].rows, source.in_features});
      ++in_blocks;
    }
    return CountingBackend::PackLinear({parts.data(), source.part_count, source.in_features, source.layout},
                                       out);
  }

 private:
  // What the model's files do not say.
  static StepMaxima InBlocks(StepMaxima maxima) {
    constexpr int64_t kMostNumbers = int64_t{1} << 20;  // of a weight of a model that a test makes
    maxima.quantised_numbers = kMostNumbers;
    return maxima;
  }
  // A part of bf16 in blocks.
  std::vector<std::byte> PartOf(const LinearSource& source, int32_t index) const {
    const WeightRows& part = source.parts[index];
    TM_CHECK(part.format == Format(DType::kBf16), "%s", FormatName(part.format).c_str());
    const auto* rows = static_cast<const std::byte*>(
        source.feed != nullptr ? source.feed->Rows(index, 0, part.rows) : part.data);
    std::vector<uint16_t> bits(static_cast<size_t>(source.in_features));
    std::vector<float> values;
    for (int64_t row = 0; row < part.rows; ++row) {
      // Rows may lie at any address.
      std::memcpy(bits.data(), rows + part.format.Bytes(row * part.row_stride), 2 * bits.size());
      for (const uint16_t number : bits) values.push_back(Bf16ToFloat(number));
    }
    return block_weights::Encode(type_, values);
  }

  const DType type_;
};

}  // namespace tramontane
