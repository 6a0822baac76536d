#include "bench/gpu/random_weights.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"

namespace tramontane::gpu {
namespace {

constexpr int64_t kBlockElements = int64_t{33} << 20;  // a backend asks for 16 MiB of 4 bits and more at once
constexpr int64_t kRowAlignment = 32;                  // elements

// Rows of each part begin anywhere in the block; or there is no block, and the device is filled.
class RandomRows final : public RowFeed {
 public:
  using FillNumbers = std::function<void(void* packed, int64_t numbers)>;

  // row_numbers: those of a row, whole blocks.
  RandomRows(int64_t row_numbers, const Format& format, const void* block)
      : row_numbers_(row_numbers), format_(format), block_(static_cast<const std::byte*>(block)) {}
  RandomRows(int64_t row_numbers, FillNumbers fill)
      : row_numbers_(row_numbers), format_(DType::kBf16), fill_(std::move(fill)) {}

  bool FillOnDevice(void* packed, int64_t numbers) override {
    if (fill_ == nullptr) return false;
    fill_(packed, numbers);
    return true;
  }

  const void* Rows(int32_t part, int64_t begin, int64_t count) override {
    TM_CHECK(block_ != nullptr, "rows that the device was to make are asked for");
    const int64_t elements = count * row_numbers_, room = kBlockElements - elements;
    const int64_t alignment = std::max(kRowAlignment, format_.block_size());
    TM_CHECK(room >= 0, "%lld random numbers at once", static_cast<long long>(elements));
    const auto first = static_cast<uint64_t>(begin * row_numbers_ + part) * 0x9e3779b97f4a7c15ull;
    const auto places = static_cast<uint64_t>(room / alignment + 1);
    return block_ + format_.Bytes(static_cast<int64_t>((first >> 20) % places) * alignment);
  }

 private:
  const int64_t row_numbers_;
  const Format format_;
  const std::byte* const block_ = nullptr;
  const FillNumbers fill_ = nullptr;
};

// Blocks of Q4_0 or groups of int4: one f16 and integers of 4 bits, of which 8 stands for 0; each from 1 to
// 15 as likely as the others.
std::vector<std::byte> RandomIn4Bits(const Format& format, int64_t count, float scale, uint64_t seed) {
  constexpr float kDeviation = 4.3205f;  // of those integers
  std::mt19937_64 random(seed);
  const uint16_t step = FloatToF16(scale / kDeviation);
  std::vector<std::byte> blocks(static_cast<size_t>(format.Bytes(count)));
  for (size_t at = 0; at < blocks.size(); at += static_cast<size_t>(format.block_bytes)) {
    std::memcpy(&blocks[at], &step, sizeof(step));
    for (size_t i = at + sizeof(step); i < at + static_cast<size_t>(format.block_bytes); ++i) {
      const uint64_t drawn = random();
      blocks[i] = static_cast<std::byte>((1 + drawn % 15) | (1 + (drawn >> 32) % 15) << 4);
    }
  }
  return blocks;
}

// Groups of fp8: one f32 and numbers of a normal distribution, from 65,536 that are drawn over and over.
std::vector<std::byte> RandomFp8(int64_t count, float scale, uint64_t seed) {
  constexpr float kDeviation = 64.0f;  // of those numbers, of which the largest is 448
  const Format format = DType::kFp8E4M3;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, kDeviation);
  std::vector<std::byte> some(1 << 16), blocks(static_cast<size_t>(format.Bytes(count)));
  for (std::byte& bits : some) bits = static_cast<std::byte>(FloatToFp8E4M3(normal(random)));
  const float step = scale / kDeviation;
  for (size_t at = 0; at < blocks.size(); at += static_cast<size_t>(format.block_bytes)) {
    std::memcpy(&blocks[at], &step, sizeof(step));
    for (size_t i = at + sizeof(step); i < at + static_cast<size_t>(format.block_bytes); ++i)
      blocks[i] = some[random() % some.size()];
  }
  return blocks;
}

std::vector<std::byte> RandomBlocks(const Format& format, int64_t count, float scale, uint64_t seed) {
  if (format == DType::kFp8E4M3) return RandomFp8(count, scale, seed);
  TM_CHECK(format == DType::kQ4_0 || format == DType::kInt4, "random numbers for %s",
           FormatName(format).c_str());
  return RandomIn4Bits(format, count, scale, seed);
}

}  // namespace

std::vector<uint16_t> RandomBf16(int64_t count, float scale, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<uint16_t> some(1 << 16), numbers(static_cast<size_t>(count));
  for (uint16_t& bits : some) bits = FloatToBf16(normal(random));
  for (uint16_t& bits : numbers) bits = some[random() % some.size()];
  return numbers;
}

RandomWeights::RandomWeights(BackendPtr inner, float scale, const Format& matrices, Fill fill)
    : CountingBackend(*inner),
      inner_(std::move(inner)),
      scale_(scale),
      matrices_(matrices),
      fill_(std::move(fill)) {
  if (fill_ == nullptr) bf16_ = RandomBf16(kBlockElements, scale, 23);
  if (matrices != DType::kBf16) blocks_ = RandomBlocks(matrices, kBlockElements, scale, 24);
}

OpCode RandomWeights::PackLinear(const LinearSource& source, WeightHandle* out) {
  const Format format = source.use == WeightUse::kTable ? Format(DType::kBf16) : matrices_;
  const int64_t row_numbers = format.Blocks(source.in_features) * format.block_size();
  std::vector<WeightRows> parts(source.parts, source.parts + source.part_count);
  for (WeightRows& part : parts) {
    TM_CHECK(part.format == DType::kBf16, "random numbers for %s", FormatName(part.format).c_str());
    part.format = format;
    part.row_stride = row_numbers;
    part.scale_of_row = format.dtype == DType::kFp8E4M3 ? 1 : 0;  // RandomFp8 has one
  }
  const auto fill = [this](void* packed, int64_t numbers) {
    fill_({.out = packed, .count = numbers, .scale = scale_, .seed = next_seed_++});
  };
  const void* const block = format == DType::kBf16 ? static_cast<const void*>(bf16_.data())
                                                   : static_cast<const void*>(blocks_.data());
  RandomRows rows = fill_ != nullptr && format == DType::kBf16 ? RandomRows(row_numbers, fill)
                                                               : RandomRows(row_numbers, format, block);
  LinearSource random = source;
  random.parts = parts.data();
  random.feed = &rows;
  return CountingBackend::PackLinear(random, out);
}

}  // namespace tramontane::gpu
