// Random weights in blocks, as a GGUF file holds them or in groups. Pure.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/core/block_types.h"
#include "kernels/core/format.h"

namespace tramontane {

// A scale as groups store it.
inline void PutScale(const Format& format, float scale, std::byte* to) {
  const uint16_t half = format.scale == DType::kF16 ? FloatToF16(scale) : FloatToBf16(scale);
  std::memcpy(to, format.scale == DType::kF32 ? static_cast<const void*>(&scale) : &half,
              static_cast<size_t>(format.scale_bytes()));
}

// Every code at random, but NaN of fp8; zero points over all they can be.
inline std::vector<std::byte> RandomGroups(const Format& format, int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> groups(static_cast<size_t>(format.Bytes(count)));
  for (std::byte& byte : groups) {
    do {
      byte = static_cast<std::byte>(random());
    } while (format.dtype == DType::kFp8E4M3 && (byte & std::byte{0x7f}) == std::byte{0x7f});
  }
  std::uniform_real_distribution<float> spread(0.5f, 1.0f);
  const float largest = format.dtype == DType::kInt4 ? 8.0f : format.dtype == DType::kInt8 ? 128.0f : 448.0f;
  for (size_t group = 0; group < groups.size(); group += static_cast<size_t>(format.block_bytes)) {
    PutScale(format, spread(random) / largest * (random() % 4 == 0 ? -1.0f : 1.0f), groups.data() + group);
    if (format.zero_points != 0 && format.dtype == DType::kInt4) {
      groups[group + static_cast<size_t>(format.scale_bytes())] =
          static_cast<std::byte>(format.least_zero + static_cast<int>(random() % 16));
    }
  }
  return groups;
}

// Gives every second row, of `row_stride` numbers each, the scales of the row before it.
inline void ShareScales(const Format& format, int64_t row_stride, std::vector<std::byte>& groups) {
  const auto row_bytes = static_cast<size_t>(format.Bytes(row_stride));
  for (size_t row = row_bytes; row < groups.size(); row += 2 * row_bytes) {
    for (size_t group = row; group < row + row_bytes; group += static_cast<size_t>(format.block_bytes)) {
      std::memcpy(&groups[group], &groups[group - row_bytes], static_cast<size_t>(format.scale_bytes()));
    }
  }
}

// `rows` rows of `row_stride` numbers of a format in blocks: every integer at random, every scale so that
// numbers are about one in size; those of GGUF's types about `size`.
inline std::vector<std::byte> RandomBlocks(const Format& format, int64_t rows, int64_t row_stride,
                                           uint32_t seed, float size = 1.0f) {
  const int64_t count = rows * row_stride;
  if (format.in_groups()) {
    std::vector<std::byte> groups = RandomGroups(format, count, seed);
    if (format.scale_rows == 2) ShareScales(format, row_stride, groups);
    return groups;
  }
  const DType type = format.dtype;
  std::mt19937 random(seed);
  std::vector<std::byte> blocks(static_cast<size_t>(format.Bytes(count)));
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(random());
  std::uniform_real_distribution<float> spread(0.5f, 1.0f);
  // Of the largest number in a block, without its scale.
  const float largest = type == DType::kQ8_0                           ? 128.0f
                        : type == DType::kQ4K                          ? 63.0f * 15.0f
                        : type == DType::kQ5K                          ? 63.0f * 31.0f
                        : type == DType::kQ6K                          ? 128.0f * 32.0f
                        : type == DType::kQ4_0 || type == DType::kQ4_1 ? 16.0f
                                                                       : 32.0f;
  const bool has_minimum =
      type == DType::kQ4_1 || type == DType::kQ5_1 || type == DType::kQ4K || type == DType::kQ5K;
  const bool in_groups = type == DType::kQ4K || type == DType::kQ5K;
  for (size_t block = 0; block < blocks.size(); block += static_cast<size_t>(format.block_bytes)) {
    std::byte* const scales = blocks.data() + block + (type == DType::kQ6K ? 208 : 0);
    const uint16_t scale =
        FloatToF16(size * spread(random) * 2.0f / largest * (random() % 4 == 0 ? -1.0f : 1.0f));
    std::memcpy(scales, &scale, 2);
    if (!has_minimum) continue;
    const uint16_t minimum = FloatToF16(size * (in_groups ? spread(random) / 63.0f : -spread(random)));
    std::memcpy(scales + 2, &minimum, 2);
  }
  return blocks;
}

// What they are in f32.
inline std::vector<float> DecodedBlocks(const Format& format, const std::vector<std::byte>& blocks) {
  const auto count = static_cast<int64_t>(blocks.size()) / format.block_bytes * format.block_size();
  std::vector<float> values(static_cast<size_t>(count));
  DecodeBlocks(format, blocks.data(), count, values.data());
  return values;
}

// Every type of GGUF's in blocks.
inline constexpr DType kBlockTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                                        DType::kQ5_1, DType::kQ4K,  DType::kQ5K,  DType::kQ6K};

// Those, and groups: every size, type of scale and kind of zero point with each type that has it.
inline std::vector<Format> BlockFormats() {
  std::vector<Format> formats(std::begin(kBlockTypes), std::end(kBlockTypes));
  formats.push_back(DType::kInt4);
  formats.push_back(Format::InGroups(DType::kInt4, 5, DType::kBf16, /*zero_points=*/true));
  formats.push_back(Format::InGroups(DType::kInt4, 6, DType::kF32));
  formats.push_back(Format::InGroups(DType::kInt4, 7, DType::kF16, /*zero_points=*/true, /*rows_of_scale=*/1,
                                     /*least_zero_point=*/1));
  formats.push_back(Format::InGroups(DType::kInt4, 8, DType::kBf16));
  formats.push_back(Format::InGroups(DType::kInt8, 5, DType::kF16));
  formats.push_back(Format::InGroups(DType::kInt8, 6, DType::kF16, /*zero_points=*/true));
  formats.push_back(Format::InGroups(DType::kInt8, 7, DType::kBf16));
  formats.push_back(Format::InGroups(DType::kInt8, 8, DType::kF32, /*zero_points=*/true));
  formats.push_back(Format::InGroups(DType::kFp8E4M3, 6, DType::kF16));
  formats.push_back(DType::kFp8E4M3);
  formats.push_back(
      Format::InGroups(DType::kFp8E4M3, 7, DType::kF32, /*zero_points=*/false, /*rows_of_scale=*/2));
  formats.push_back(Format::InGroups(DType::kFp8E4M3, 8, DType::kBf16));
  return formats;
}

// Of a test: "q4_k", "int4_128_f16_zeros".
inline std::string BlockFormatId(const Format& format) {
  std::string id = DTypeName(format.dtype);
  if (!format.in_groups()) return id;
  id += "_" + std::to_string(format.block_size()) + "_" + DTypeName(format.scale);
  if (format.scale_rows == 2) id += "_pairs";
  if (format.zero_points == 0) return id;
  return id + (format.least_zero == 0 ? "_zeros" : "_zeros_from_1");
}

}  // namespace tramontane
