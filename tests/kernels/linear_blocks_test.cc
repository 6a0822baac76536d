// Linear of the CPU backend over weights in blocks: exactly, bit for bit as an f32 weight of the decoded
// values; in 8 bits, against the definition in double precision and bit for bit against itself over rows,
// threads, places and variants; parts of different formats; columns in an order of their own; experts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cpu/linear.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/random_blocks.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

constexpr float kEpsilon = 1e-5f;

std::vector<float> RandomFloats(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// A part of a source, in its format and in f32.
struct Part {
  Format type;
  int64_t rows;
  std::vector<std::byte> bytes;
  std::vector<float> values;        // [rows, in features]
  std::vector<int32_t> order = {};  // WeightRows::column_order
};

// Numbers from one row to the next: whole blocks.
int64_t RowStride(const Format& format, int64_t in_features) {
  return format.Blocks(in_features) * format.block_size();
}

std::vector<float> DecodedRows(const Part& part, int64_t in_features) {
  const std::vector<float> all = DecodedBlocks(part.type, part.bytes);
  const int64_t stride = RowStride(part.type, in_features);
  std::vector<float> values;
  for (int64_t row = 0; row < part.rows; ++row) {
    values.insert(values.end(), all.begin() + row * stride, all.begin() + row * stride + in_features);
  }
  return values;
}

Part RandomPart(const Format& format, int64_t rows, int64_t in_features, uint32_t seed) {
  const DType type = format.dtype;
  Part part = {format, rows, {}, {}};
  if (!format.plain()) {
    part.bytes = RandomBlocks(format, rows, RowStride(format, in_features), seed);
    part.values = DecodedRows(part, in_features);
    return part;
  }
  part.values = RandomFloats(rows * in_features, seed);
  part.bytes.resize(static_cast<size_t>(format.Bytes(rows * in_features)));
  for (size_t i = 0; i < part.values.size(); ++i) {
    float& value = part.values[i];
    const uint16_t bits = type == DType::kBf16 ? FloatToBf16(value) : FloatToF16(value);
    if (type == DType::kF32) {
      std::memcpy(part.bytes.data() + 4 * i, &value, 4);
    } else {
      std::memcpy(part.bytes.data() + 2 * i, &bits, 2);
      value = type == DType::kBf16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
    }
  }
  return part;
}

struct Setting {
  std::string variant;
  LinearMode mode = LinearMode::kInt8;
  int32_t threads = 1;
  WeightUse use = WeightUse::kLinear;
};

// One backend with one weight.
class Fixture {
 public:
  Fixture(const Setting& setting, const std::vector<Part>& parts, int64_t in_features, LinearLayout layout,
          int64_t max_rows, bool as_f32 = false)
      : in_features_(in_features) {
    backend_ =
        std::move(
            MakeCpuBackend({.threads = setting.threads, .variant = setting.variant, .linear = setting.mode}))
            .value();
    std::vector<WeightRows> rows;
    for (const Part& part : parts) {
      rows.push_back({.data = as_f32 ? static_cast<const void*>(part.values.data()) : part.bytes.data(),
                      .format = as_f32 ? Format(DType::kF32) : part.type,
                      .rows = part.rows,
                      .row_stride = as_f32 ? in_features : RowStride(part.type, in_features),
                      .column_order = part.order.empty() ? nullptr : part.order.data()});
      columns_ += part.rows;
    }
    if (layout == LinearLayout::kGateUp) columns_ /= 2;
    swiglu_ = layout == LinearLayout::kGateUp;
    const LinearSource source = {.parts = rows.data(),
                                 .part_count = static_cast<int32_t>(rows.size()),
                                 .in_features = in_features,
                                 .layout = layout,
                                 .use = setting.use};
    TM_CHECK(backend_->PackLinear(source, &weight_) == OpCode::kOk, "%s", backend_->last_error());
    TM_CHECK(backend_->PackedBytes(source) == packed().bytes, "bytes are as planned");
    TM_CHECK(backend_->Reserve({.tokens = static_cast<int32_t>(max_rows),
                                .hidden = static_cast<int32_t>(in_features)}) == OpCode::kOk,
             "%s", backend_->last_error());
  }

  const PackedWeight& packed() const { return *static_cast<const PackedWeight*>(weight_.impl); }
  int64_t columns() const { return columns_; }

  // `residual`: what out holds before; where it is given it is added.
  std::vector<float> Run(const std::vector<float>& x, const std::vector<float>& norm = {},
                         const std::vector<float>& residual = {}) {
    const auto rows = static_cast<int64_t>(x.size()) / in_features_;
    std::vector<float> out = residual;
    if (out.empty()) out.assign(static_cast<size_t>(rows * columns_), std::nanf(""));
    const LinearParams params = {
        .x = MakeTensor(const_cast<float*>(x.data()), DType::kF32, rows, in_features_),
        .rows = static_cast<int32_t>(rows),
        .prologue = norm.empty() ? Prologue::kNone : Prologue::kRmsNorm,
        .norm_weight = norm.data(),
        .norm_epsilon = kEpsilon,
        .weight = weight_,
        .epilogue = swiglu_            ? Epilogue::kSwiGlu
                    : residual.empty() ? Epilogue::kNone
                                       : Epilogue::kAddResidual,
        .out = MakeTensor(out.data(), DType::kF32, rows, columns_)};
    TM_CHECK(backend_->Linear(params) == OpCode::kOk, "%s", backend_->last_error());
    return out;
  }

 private:
  int64_t in_features_;
  int64_t columns_ = 0;
  bool swiglu_ = false;
  BackendPtr backend_;
  WeightHandle weight_;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> RowsOf(const std::vector<float>& from, int64_t begin, int64_t count, int64_t width) {
  return {from.begin() + begin * width, from.begin() + (begin + count) * width};
}

// Each test takes every format in turn: as tests of their own they would be a thousand programs to start.
class LinearBlocksTest : public CpuVariantTest {
 protected:
  static constexpr bool kWholeNumbersAlone = true;

  template <typename Body>
  void ForEachFormat(const Body& body, bool whole_numbers_alone = false) {
    for (const Format& format : BlockFormats()) {
      if (whole_numbers_alone && !HasWholeNumbers(format)) continue;
      SCOPED_TRACE(BlockFormatId(format));
      format_ = format;
      body();
      if (HasFatalFailure()) return;
    }
  }
  static std::string Variant() { return GetParam(); }
  Format Type() const { return format_; }
  int64_t Block() const { return Type().block_size(); }
  // So many, or where rows share scales a few more, of which gates are half.
  int64_t OutFeatures(int64_t wanted) const {
    const int64_t multiple = Type().scale_rows == 1 ? 1 : 2 * Type().scale_rows;
    return (wanted + multiple - 1) / multiple * multiple;
  }
  // So many blocks, of more than one group the last filled up.
  int64_t InFeatures(int64_t blocks) const {
    return blocks * Block() - (Type().in_groups() && blocks > 1 && Block() > 32 ? 32 : 0);
  }

 private:
  Format format_ = DType::kQ8_0;
};
TM_INSTANTIATE_FOR_CPU_VARIANTS(LinearBlocksTest);

// Two parts of unequal rows, as q, k and v are, or gate and up.
std::vector<Part> PartsOf(const Format& type, int64_t out_features, int64_t in_features,
                          LinearLayout layout) {
  const int64_t third = (out_features + 2) / 3, shared = type.scale_rows;
  const int64_t first =
      layout == LinearLayout::kGateUp ? out_features / 2 : (third + shared - 1) / shared * shared;
  std::vector<Part> parts = {RandomPart(type, first, in_features, 1)};
  if (first < out_features) parts.push_back(RandomPart(type, out_features - first, in_features, 2));
  return parts;
}

TEST_P(LinearBlocksTest, ExactlyGivesTheBitsOfAnF32WeightOfTheDecodedValues) {
  ForEachFormat([&] {
    for (const auto& [out_features, blocks, rows] : {std::tuple<int64_t, int64_t, int64_t>{2, 1, 1},
                                                     {30, 2, 3},
                                                     {66, 3, 7},
                                                     {130, 1, 15},
                                                     {258, 9, 29}}) {
      const int64_t in_features = InFeatures(blocks);
      const std::vector<float> x = RandomFloats(rows * in_features, 3);
      const std::vector<float> norm = RandomFloats(in_features, 4);
      for (const LinearLayout layout : {LinearLayout::kStacked, LinearLayout::kGateUp}) {
        const std::vector<Part> parts = PartsOf(Type(), OutFeatures(out_features), in_features, layout);
        const Setting setting = {Variant(), LinearMode::kExact, 2};
        Fixture in_blocks(setting, parts, in_features, layout, rows);
        Fixture in_f32(setting, parts, in_features, layout, rows, /*as_f32=*/true);
        EXPECT_TRUE(SameBits(in_blocks.Run(x), in_f32.Run(x))) << rows << " rows of " << in_features;
        EXPECT_TRUE(SameBits(in_blocks.Run(x, norm), in_f32.Run(x, norm))) << rows << " rows, normalised";
        if (layout == LinearLayout::kGateUp) continue;
        const std::vector<float> residual = RandomFloats(rows * OutFeatures(out_features), 5);
        EXPECT_TRUE(SameBits(in_blocks.Run(x, norm, residual), in_f32.Run(x, norm, residual)));
      }
    }
  });
}

// As weights are: the first 32 numbers of a panel's outputs are seldom subnormal, but for one; the others
// often. One row has a scale that leaves no room for a power of two.
TEST_P(LinearBlocksTest, ExactlyTakesFp8WithFewSubnormals) {
  constexpr int64_t kOutFeatures = 90, kInFeatures = 256;
  for (const Format& format : {Format(DType::kFp8E4M3), Format::InGroups(DType::kFp8E4M3, 5, DType::kBf16)}) {
    Part part = RandomPart(format, kOutFeatures, kInFeatures, 1);
    const auto row_bytes = static_cast<size_t>(format.Bytes(kInFeatures));
    const auto begin = static_cast<size_t>(format.codes_at());
    for (size_t row = 0; row < kOutFeatures; ++row) {
      std::byte* const codes = &part.bytes[row * row_bytes + begin];
      for (size_t k = 0; k < 32; ++k) {
        const int size = static_cast<int>(codes[k]) & 127;
        if (size < 8 || size == 127) codes[k] ^= std::byte{0x18};
      }
    }
    part.bytes[40 * row_bytes + begin + 9] = std::byte{0x83};
    PutScale(format, 1e33f, &part.bytes[80 * row_bytes]);
    part.values = DecodedRows(part, kInFeatures);
    for (const int64_t rows : {1, 2, 5, 40}) {
      const std::vector<float> x = RandomFloats(rows * kInFeatures, 3);
      const Setting setting = {Variant(), LinearMode::kExact, 1};
      Fixture in_groups(setting, {part}, kInFeatures, LinearLayout::kStacked, rows);
      Fixture in_f32(setting, {part}, kInFeatures, LinearLayout::kStacked, rows, /*as_f32=*/true);
      EXPECT_TRUE(SameBits(in_groups.Run(x), in_f32.Run(x))) << BlockFormatId(format) << ", rows " << rows;
    }
  }
}

// NaN, and scales that leave no room for a power of two: one row of each beside ordinary ones.
TEST_P(LinearBlocksTest, ExactlyTakesFp8OfAnyCodeAndScale) {
  constexpr int64_t kOutFeatures = 90, kInFeatures = 256;
  const float scales[] = {300.0f, 3e38f, -2e38f, 1e-44f, std::numeric_limits<float>::infinity()};
  for (const Format& format : {Format(DType::kFp8E4M3), Format::InGroups(DType::kFp8E4M3, 5, DType::kBf16)}) {
    Part part = RandomPart(format, kOutFeatures, kInFeatures, 1);
    const auto row_bytes = static_cast<size_t>(format.Bytes(kInFeatures));
    const auto codes = static_cast<size_t>(format.codes_at());
    part.bytes[5 * row_bytes + codes + 30] = std::byte{0x7f};
    part.bytes[70 * row_bytes + codes + 7] = std::byte{0xff};
    for (size_t i = 0; i < std::size(scales); ++i)
      PutScale(format, scales[i], &part.bytes[(20 + i) * row_bytes]);
    part.values = DecodedRows(part, kInFeatures);
    for (const int64_t rows : {1, 5, 40}) {
      std::vector<float> x = RandomFloats(rows * kInFeatures, 3);
      x[9] = 1e-42f;
      const Setting setting = {Variant(), LinearMode::kExact, 1};
      Fixture in_groups(setting, {part}, kInFeatures, LinearLayout::kStacked, rows);
      Fixture in_f32(setting, {part}, kInFeatures, LinearLayout::kStacked, rows, /*as_f32=*/true);
      const std::vector<float> got = in_groups.Run(x), want = in_f32.Run(x);
      int64_t nans = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        nans += std::isnan(want[i]) ? 1 : 0;
        if (std::isnan(want[i])) {
          EXPECT_TRUE(std::isnan(got[i])) << BlockFormatId(format) << ", output " << i;
        } else {
          EXPECT_EQ(std::memcmp(&got[i], &want[i], sizeof(float)), 0)
              << BlockFormatId(format) << ", output " << i << " is " << got[i] << " and not " << want[i];
        }
      }
      EXPECT_GE(nans, 2 * rows);
      EXPECT_LE(nans, 6 * rows);
    }
  }
}

// x as it is rounded to 8 bits: each block of a row by itself.
std::vector<float> RoundedTo8Bits(const std::vector<float>& x, int64_t block) {
  std::vector<float> rounded(x.size());
  for (size_t begin = 0; begin < x.size(); begin += static_cast<size_t>(block)) {
    float size = 0.0f;
    for (size_t i = begin; i < begin + static_cast<size_t>(block); ++i) size = std::max(size, std::abs(x[i]));
    const float inverse = size > 0.0f ? 127.0f / size : 0.0f;
    for (size_t i = begin; i < begin + static_cast<size_t>(block); ++i) {
      rounded[i] = std::nearbyint(x[i] * inverse) * (size / 127.0f);
    }
  }
  return rounded;
}

// A block's scale, its product with a row's and the sum of both products are rounded, and each block once
// more where it is added; its terms are at most as large as the weight's largest number, twice where a
// minimum is taken off.
void ExpectRoundedProducts(const std::vector<float>& got, const std::vector<Part>& parts,
                           const std::vector<float>& x, int64_t in_features, int64_t block) {
  const std::vector<float> rounded = RoundedTo8Bits(x, block);
  const auto rows = static_cast<int64_t>(x.size()) / in_features;
  const double relative = static_cast<double>(in_features / block * 2 + 6) * 0x1p-24;
  int64_t columns = 0;
  for (const Part& part : parts) columns += part.rows;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t column = 0;
    for (const Part& part : parts) {
      for (int64_t r = 0; r < part.rows; ++r, ++column) {
        double sum = 0, size = 0, largest = 0;
        for (int64_t k = 0; k < in_features; ++k) {
          const double w = part.values[static_cast<size_t>(r * in_features + k)];
          const double value = rounded[static_cast<size_t>(row * in_features + k)];
          sum += w * value;
          size += std::abs(value);
          largest = std::max(largest, std::abs(w));
        }
        ASSERT_NEAR(got[static_cast<size_t>(row * columns + column)], sum, relative * 4 * largest * size)
            << "row " << row << ", column " << column << ", K " << in_features;
      }
    }
  }
}

TEST_P(LinearBlocksTest, In8BitsGivesTheSumsOfRoundedRows) {
  ForEachFormat(
      [&] {
        for (const auto& [out_features, blocks, rows] :
             {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {33, 2, 5}, {70, 5, 14}, {40, 9, 31}}) {
          const int64_t in_features = InFeatures(blocks);
          const std::vector<float> x = RandomFloats(rows * in_features, 3);
          const std::vector<Part> parts =
              PartsOf(Type(), OutFeatures(out_features), in_features, LinearLayout::kStacked);
          Fixture fixture({Variant(), LinearMode::kInt8, 2}, parts, in_features, LinearLayout::kStacked,
                          rows);
          ExpectRoundedProducts(fixture.Run(x), parts, x, in_features, RoundedBlock(Type()));
          if (HasFatalFailure()) return;
        }
      },
      kWholeNumbersAlone);
}

// The largest integers a type has, with rows of the largest and the smallest: nothing is cut off in 16 bits.
TEST_P(LinearBlocksTest, In8BitsHoldsTheLargestSums) {
  ForEachFormat(
      [&] {
        const int64_t in_features = InFeatures(2);
        for (const int fill : {0x00, 0xff, 0x7f, 0x80}) {
          std::vector<Part> parts = {RandomPart(Type(), 20, in_features, 1)};
          const std::vector<std::byte> scaled = parts[0].bytes;
          std::fill(parts[0].bytes.begin(), parts[0].bytes.end(), static_cast<std::byte>(fill));
          const bool at_end = Type() == Format(DType::kQ6K);
          const auto block_bytes = static_cast<size_t>(Type().block_bytes);
          for (size_t block = 0; block < scaled.size(); block += block_bytes) {
            const size_t at = block + (at_end ? 208 : 0);
            if (Type().in_groups()) {
              const auto scale_bytes = static_cast<size_t>(Type().scale_bytes());
              std::memcpy(parts[0].bytes.data() + at, scaled.data() + at, scale_bytes);
              // As far from the integers as there are.
              if (Type().zero_points != 0) {
                parts[0].bytes[at + scale_bytes] = static_cast<std::byte>(
                    Type().dtype == DType::kInt4 ? Type().least_zero + (~fill & 15) : ~fill);
              }
              continue;
            }
            std::memcpy(parts[0].bytes.data() + at, scaled.data() + at,
                        at_end || Type() == Format(DType::kQ8_0) ? 2 : 4);
          }
          parts[0].values = DecodedRows(parts[0], in_features);
          for (const float sign : {1.0f, -1.0f}) {
            const std::vector<float> x(static_cast<size_t>(3 * in_features), sign);
            Fixture fixture({Variant(), LinearMode::kInt8, 1}, parts, in_features, LinearLayout::kStacked, 3);
            ExpectRoundedProducts(fixture.Run(x), parts, x, in_features, RoundedBlock(Type()));
            if (HasFatalFailure()) return;
          }
        }
      },
      kWholeNumbersAlone);
}

TEST_P(LinearBlocksTest, OutputsHaveTheSameBitsAtAnyRowCountThreadCountAndPlace) {
  ForEachFormat([&] {
    const int64_t in_features = InFeatures(Block() == 32 ? 12 : 3);
    const int64_t out_features = OutFeatures(ScaledCount(380, 140));
    constexpr int64_t kRows = 70;
    const std::vector<float> x = RandomFloats(kRows * in_features, 3);
    const std::vector<float> norm = RandomFloats(in_features, 4);
    for (const LinearMode mode : {LinearMode::kExact, LinearMode::kInt8}) {
      for (const LinearLayout layout : {LinearLayout::kStacked, LinearLayout::kGateUp}) {
        const std::vector<Part> parts = PartsOf(Type(), out_features, in_features, layout);
        Fixture alone({Variant(), mode, 1}, parts, in_features, layout, 1);
        std::vector<float> row_by_row;
        for (int64_t row = 0; row < kRows; ++row) {
          const std::vector<float> out = alone.Run(RowsOf(x, row, 1, in_features), norm);
          row_by_row.insert(row_by_row.end(), out.begin(), out.end());
        }
        // All counts, or the least and the most.
        for (int32_t threads = 1; threads <= 4; threads += static_cast<int32_t>(5 - ScaledCount(4, 2))) {
          Fixture fixture({Variant(), mode, threads}, parts, in_features, layout, kRows);
          for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 64}) {
            const int64_t first = (kRows - rows) / 2;
            EXPECT_TRUE(SameBits(fixture.Run(RowsOf(x, first, rows, in_features), norm),
                                 RowsOf(row_by_row, first, rows, alone.columns())))
                << rows << " rows, " << threads << " threads, mode " << static_cast<int>(mode);
          }
        }
      }
    }
  });
}

TEST_P(LinearBlocksTest, VariantsWithFusedMultiplyAddsAgreeIn8Bits) {
  if (Variant() == "portable") GTEST_SKIP() << "it has none";
  ForEachFormat([&] {
    const int64_t in_features = InFeatures(2);
    const std::vector<Part> parts = PartsOf(Type(), 100, in_features, LinearLayout::kStacked);
    const std::vector<float> x = RandomFloats(9 * in_features, 3);
    Fixture fixture({Variant()}, parts, in_features, LinearLayout::kStacked, 9);
    Fixture avx2({"avx2"}, parts, in_features, LinearLayout::kStacked, 9);
    EXPECT_TRUE(SameBits(fixture.Run(x), avx2.Run(x)));
  });
}

TEST_P(LinearBlocksTest, ARowOfNansLeavesItsNeighboursAlone) {
  ForEachFormat(
      [&] {
        const int64_t in_features = InFeatures(2);
        const std::vector<Part> parts = PartsOf(Type(), 40, in_features, LinearLayout::kStacked);
        Fixture fixture({Variant()}, parts, in_features, LinearLayout::kStacked, 9);
        for (const float broken :
             {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
          std::vector<float> x = RandomFloats(9 * in_features, 3);
          std::vector<float> clean = fixture.Run(x);
          x[static_cast<size_t>(4 * in_features + in_features / 2 + 7)] = broken;
          const std::vector<float> got = fixture.Run(x);
          for (int64_t c = 0; c < 40; ++c) {
            EXPECT_TRUE(std::isnan(got[static_cast<size_t>(4 * 40 + c)]));
            clean[static_cast<size_t>(4 * 40 + c)] = got[static_cast<size_t>(4 * 40 + c)];
          }
          EXPECT_TRUE(SameBits(got, clean));
        }
      },
      kWholeNumbersAlone);
}

TEST_P(LinearBlocksTest, RowsOfZerosAndOfNumbersTooSmallToDivideByAreZero) {
  ForEachFormat(
      [&] {
        const std::vector<Part> parts = PartsOf(Type(), 40, Block(), LinearLayout::kStacked);
        Fixture fixture({Variant()}, parts, Block(), LinearLayout::kStacked, 2);
        std::vector<float> x(static_cast<size_t>(2 * Block()), 0.0f);
        x[static_cast<size_t>(Block())] = 1e-40f;
        for (const float value : fixture.Run(x)) EXPECT_EQ(value, 0.0f);
      },
      kWholeNumbersAlone);
}

TEST_P(LinearBlocksTest, UnpackedRowsAreTheDecodedRows) {
  ForEachFormat([&] {
    const int64_t in_features = InFeatures(3);
    for (const LinearLayout layout : {LinearLayout::kStacked, LinearLayout::kGateUp}) {
      const std::vector<Part> parts = PartsOf(Type(), OutFeatures(74), in_features, layout);
      Fixture fixture({Variant()}, parts, in_features, layout, 1);
      int64_t row = 0;
      for (const Part& part : parts) {
        for (int64_t r = 0; r < part.rows; ++r, ++row) {
          std::vector<float> got(static_cast<size_t>(in_features));
          UnpackRow(fixture.packed(), row, got.data());
          ASSERT_TRUE(SameBits(got, RowsOf(part.values, r, 1, in_features))) << row;
        }
      }
    }
  });
}

TEST_P(LinearBlocksTest, PackingAddsNothingToWholePanels) {
  ForEachFormat([&] {
    const std::vector<Part> parts = {RandomPart(Type(), 192, Block(), 1)};
    Fixture fixture({Variant()}, parts, Block(), LinearLayout::kStacked, 1);
    const int64_t bytes = Type().PackedBytes(Block(), 192);
    EXPECT_EQ(fixture.packed().bytes, (bytes + 63) / 64 * 64);  // the next begins at a line
  });
}

// ---- groups

class GroupsTest : public CpuVariantTest {};
TM_INSTANTIATE_FOR_CPU_VARIANTS(GroupsTest);

// A row of the weight for each code, NaN among them.
TEST_P(GroupsTest, Fp8HasEveryValue) {
  constexpr int64_t kIn = 32;
  const Format format = Format::InGroups(DType::kFp8E4M3, 5, DType::kF32);
  Part part = {format, 256, std::vector<std::byte>(static_cast<size_t>(format.Bytes(256 * kIn))), {}};
  for (int64_t code = 0; code < 256; ++code) {
    std::byte* const group = part.bytes.data() + format.Bytes(code * kIn);
    PutScale(format, 0.3f, group);
    std::fill_n(group + format.codes_at(), kIn, static_cast<std::byte>(code));
  }
  std::vector<float> x(kIn);
  for (const size_t place : {0u, 13u, 31u}) {
    std::fill(x.begin(), x.end(), 0.0f);
    x[place] = 1.0f;
    const std::vector<float> got =
        Fixture({GetParam(), LinearMode::kExact, 1}, {part}, kIn, LinearLayout::kStacked, 1).Run(x);
    for (size_t code = 0; code < 256; ++code) {
      const float want = 0.3f * Fp8E4M3ToFloat(static_cast<uint8_t>(code));
      EXPECT_TRUE(got[code] == want || (std::isnan(got[code]) && std::isnan(want))) << code;
    }
  }
}

TEST_P(GroupsTest, WithoutWholeNumbersIn8BitsIsExactly) {
  constexpr int64_t kIn = 384;
  const std::vector<Part> parts = {RandomPart(DType::kFp8E4M3, 40, kIn, 1)};
  const std::vector<float> x = RandomFloats(5 * kIn, 3);
  Fixture exact({GetParam(), LinearMode::kExact, 1}, parts, kIn, LinearLayout::kStacked, 5);
  Fixture in_8_bits({GetParam(), LinearMode::kInt8, 1}, parts, kIn, LinearLayout::kStacked, 5);
  EXPECT_TRUE(SameBits(exact.Run(x), in_8_bits.Run(x)));
}

// kernels/README.md names what lacks them.
TEST_P(LinearBlocksTest, AllFormatsButFp8HaveProductsIn8Bits) {
  std::ifstream readme("kernels/README.md");
  const std::string text{std::istreambuf_iterator<char>(readme), {}};
  EXPECT_NE(text.find("exact for every type in `block_types.h`"), std::string::npos);
  EXPECT_NE(text.find("fp8 has no 8-bit products"), std::string::npos);
  ForEachFormat([&] {
    const int64_t in_features = InFeatures(2);
    const std::vector<Part> parts = PartsOf(Type(), OutFeatures(40), in_features, LinearLayout::kStacked);
    const std::vector<float> x = RandomFloats(3 * in_features, 3);
    Fixture exact({Variant(), LinearMode::kExact, 1}, parts, in_features, LinearLayout::kStacked, 3);
    Fixture in_8_bits({Variant(), LinearMode::kInt8, 1}, parts, in_features, LinearLayout::kStacked, 3);
    EXPECT_EQ(SameBits(exact.Run(x), in_8_bits.Run(x)), Type().dtype == DType::kFp8E4M3);
  });
}

TEST_P(LinearBlocksTest, ThoseThatGiveLogitsAreExactInEitherMode) {
  ForEachFormat([&] {
    const int64_t in_features = InFeatures(2);
    const std::vector<Part> parts = {RandomPart(Type(), OutFeatures(40), in_features, 1)};
    const std::vector<float> x = RandomFloats(3 * in_features, 3);
    const auto run = [&](LinearMode mode, WeightUse use) {
      return Fixture({Variant(), mode, 1, use}, parts, in_features, LinearLayout::kStacked, 3).Run(x);
    };
    const std::vector<float> exact = run(LinearMode::kExact, WeightUse::kLinear);
    EXPECT_TRUE(SameBits(run(LinearMode::kInt8, WeightUse::kHead), exact));
    EXPECT_TRUE(SameBits(run(LinearMode::kInt8, WeightUse::kTable), exact)) << "an embedding that is both";
  });
}

// A file of blocks of 128x128 has one byte a number and one f32 a block.
TEST(GroupsBytesTest, F32ScalesOfBlocksAddNoTwoPercent) {
  constexpr int64_t kRows = 256, kIn = 1024, kFileBytes = kRows * kIn + 4 * (kRows / 128) * (kIn / 128);
  const Format pairs = Format::InGroups(DType::kFp8E4M3, 7, DType::kF32, false, /*rows_of_scale=*/2);
  const WeightRows part = {nullptr, pairs, kRows, kIn};
  const int64_t packed = PackedLinearBytes({&part, 1, kIn, LinearLayout::kStacked}, kAvx2Kernels);
  EXPECT_GT(packed, kFileBytes);
  EXPECT_LE(packed * 100, kFileBytes * 102);
}

// A file of groups of 32 has four bits a number and a zero point, and an f16 a group.
TEST(GroupsBytesTest, ZeroPointsOfFourBitsAddNothing) {
  constexpr int64_t kRows = 256, kIn = 1024, kGroups = kIn / 32;
  const Format zeros = Format::InGroups(DType::kInt4, 5, DType::kF16, /*zero_points=*/true);
  const WeightRows part = {nullptr, zeros, kRows, kIn};
  EXPECT_EQ(PackedLinearBytes({&part, 1, kIn, LinearLayout::kStacked}, kAvx2Kernels) * 2,
            kRows * (kIn + kGroups * (2 * 2 + 1)));
}

// What docs/models.md says of one scale a row of 576 numbers, of which 64 share one in memory: 5.5 % more
// than the file's bytes, and 6.9 % where there are zero points.
TEST(GroupsBytesTest, OneScaleForARowOf576IsOneForEach64) {
  constexpr int64_t kRows = 256, kIn = 576;
  const auto more_percent = [](bool zero_points) {
    const Format groups = Format::InGroups(DType::kInt4, 6, DType::kF16, zero_points);
    const WeightRows part = {nullptr, groups, kRows, kIn};
    const int64_t packed = PackedLinearBytes({&part, 1, kIn, LinearLayout::kStacked}, kAvx2Kernels);
    const double in_file = kRows * (kIn / 2 + 2 + (zero_points ? 0.5 : 0.0));
    return 100.0 * (static_cast<double>(packed) / in_file - 1.0);
  };
  EXPECT_NEAR(more_percent(false), 5.5, 0.05);
  EXPECT_NEAR(more_percent(true), 6.9, 0.05);
}

TEST(GroupsRefusalTest, NamesWhatIsWrong) {
  const auto why = [](const Format& format, int64_t in_features, int64_t stride) {
    const WeightRows part = {nullptr, format, 8, stride};
    return WhyNotPackable({&part, 1, in_features, LinearLayout::kStacked}, {});
  };
  EXPECT_EQ(why(DType::kInt4, 128, 128), "");
  EXPECT_EQ(why(DType::kInt4, 96, 128), "") << "the last group is filled up";
  EXPECT_EQ(why(DType::kInt4, 96, 96), "part 0 has rows of 96 elements every 96");
  EXPECT_EQ(why(DType::kInt4, 80, 128),
            "part 0 is int4 in groups of 128 with f16 scales in rows of 80, which are no whole blocks of 32");
  EXPECT_EQ(
      why(Format::InGroups(DType::kInt4, 9, DType::kF16), 512, 512),
      "part 0 is int4 in groups of 512 with f16 scales, supported are the types by themselves, and those "
      "in groups of 32 to 256");
  EXPECT_NE(why(Format::InGroups(DType::kFp8E4M3, 7, DType::kF32, true), 128, 128), "");
  EXPECT_NE(why(Format::InGroups(DType::kInt8, 7, DType::kInt8), 128, 128), "");
  EXPECT_NE(why(Format::InGroups(DType::kFp8E4M3, 7, DType::kBf16, false, 2), 128, 128), "")
      << "16-bit scales are shared by no rows";
  const Format pairs = Format::InGroups(DType::kFp8E4M3, 7, DType::kF32, false, 2);
  EXPECT_EQ(why(pairs, 128, 128), "");
  const WeightRows odd = {nullptr, pairs, 7, 128};
  EXPECT_EQ(WhyNotPackable({&odd, 1, 128, LinearLayout::kStacked}, {}),
            "part 0 has 7 rows, of which every 2 share their scales");
}

// ---- parts of different formats

class MixedPartsTest : public CpuVariantTest {};
TM_INSTANTIATE_FOR_CPU_VARIANTS(MixedPartsTest);

constexpr int64_t kMixedK = 512;

// What each part gives alone, side by side.
std::vector<float> Alone(const Setting& setting, const std::vector<Part>& parts, const std::vector<float>& x,
                         const std::vector<float>& norm) {
  const auto rows = static_cast<int64_t>(x.size()) / kMixedK;
  std::vector<std::vector<float>> outs;
  for (const Part& part : parts) {
    outs.push_back(Fixture(setting, {part}, kMixedK, LinearLayout::kStacked, rows).Run(x, norm));
  }
  std::vector<float> all;
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::vector<float> of_part = RowsOf(outs[i], row, 1, parts[i].rows);
      all.insert(all.end(), of_part.begin(), of_part.end());
    }
  }
  return all;
}

const std::vector<std::vector<Format>>& MixedTypes() {
  static const std::vector<std::vector<Format>> types = {
      {DType::kQ4K, DType::kQ4K, DType::kQ6K},
      {DType::kQ8_0, DType::kQ4_1, DType::kQ8_0},
      {DType::kQ4K, DType::kQ8_0, DType::kQ4K},
      {DType::kF32, DType::kQ5_0, DType::kBf16},
      {DType::kBf16, DType::kF32, DType::kF16},
      {DType::kQ5_1, DType::kQ5_1, DType::kQ5_1},
      {DType::kInt4, Format::InGroups(DType::kInt4, 5, DType::kF32, true), DType::kQ8_0},
      {DType::kFp8E4M3, DType::kInt8, DType::kQ4K}};
  return types;
}

TEST_P(MixedPartsTest, StackedPartsKeepTheirFormatsAndTheirBits) {
  const std::vector<float> norm = RandomFloats(kMixedK, 4);
  for (const LinearMode mode : {LinearMode::kExact, LinearMode::kInt8}) {
    for (const std::vector<Format>& types : MixedTypes()) {
      const std::vector<Part> parts = {RandomPart(types[0], 70, kMixedK, 1),
                                       RandomPart(types[1], 34, kMixedK, 2),
                                       RandomPart(types[2], 33, kMixedK, 3)};
      for (const int64_t rows : {1, 5, 40}) {
        const std::vector<float> x = RandomFloats(rows * kMixedK, 5);
        Fixture together({GetParam(), mode, 2}, parts, kMixedK, LinearLayout::kStacked, rows);
        EXPECT_TRUE(SameBits(together.Run(x, norm), Alone({GetParam(), mode, 1}, parts, x, norm)))
            << rows << " rows of " << FormatName(types[0]) << ", " << FormatName(types[1]) << ", "
            << FormatName(types[2]);
      }
    }
  }
}

TEST_P(MixedPartsTest, UnpackedRowsAreThoseOfTheirParts) {
  const std::vector<Part> parts = {RandomPart(DType::kQ4K, 70, kMixedK, 1),
                                   RandomPart(DType::kBf16, 5, kMixedK, 2),
                                   RandomPart(DType::kQ6K, 33, kMixedK, 3)};
  const Fixture fixture({GetParam()}, parts, kMixedK, LinearLayout::kStacked, 1);
  int64_t row = 0;
  for (const Part& part : parts) {
    for (int64_t r = 0; r < part.rows; ++r, ++row) {
      std::vector<float> got(kMixedK);
      UnpackRow(fixture.packed(), row, got.data());
      ASSERT_TRUE(SameBits(got, RowsOf(part.values, r, 1, kMixedK))) << row;
    }
  }
}

// Exactly, the bits are those of two f32 parts, whose gate and up meet in registers.
TEST_P(MixedPartsTest, GateAndUpOfDifferentFormatsMeet) {
  const std::vector<float> norm = RandomFloats(kMixedK, 4);
  for (const std::vector<Format>& types : MixedTypes()) {
    const std::vector<Part> parts = {RandomPart(types[0], 70, kMixedK, 1),
                                     RandomPart(types[1], 70, kMixedK, 2)};
    if (RoundsInputs(GetParam()) && (types[0] == Format(DType::kBf16) || types[1] == Format(DType::kBf16)))
      continue;
    for (const int64_t rows : {1, 5, 40}) {
      const std::vector<float> x = RandomFloats(rows * kMixedK, 5);
      const Setting setting = {GetParam(), LinearMode::kExact, 2};
      Fixture mixed(setting, parts, kMixedK, LinearLayout::kGateUp, rows);
      Fixture plain(setting, parts, kMixedK, LinearLayout::kGateUp, rows, /*as_f32=*/true);
      EXPECT_TRUE(SameBits(mixed.Run(x, norm), plain.Run(x, norm)))
          << rows << " rows of " << FormatName(types[0]) << " and " << FormatName(types[1]);
    }
  }
}

// ---- columns in an order of their own

std::vector<int32_t> RandomOrder(int64_t columns, uint32_t seed) {
  std::vector<int32_t> order(static_cast<size_t>(columns));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  return order;
}

// Rows of x, or a norm's weights, as columns in such an order take them.
std::vector<float> InOrder(const std::vector<float>& x, const std::vector<int32_t>& order) {
  std::vector<float> columns(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t k = i % order.size();
    columns[i] = x[i - k + static_cast<size_t>(order[k])];
  }
  return columns;
}

// Sizes of one: a norm's sum of squares is the same in any order.
std::vector<float> RandomSigns(int64_t count, uint32_t seed) {
  std::vector<float> signs = RandomFloats(count, seed);
  for (float& sign : signs) sign = sign < 0.0f ? -1.0f : 1.0f;
  return signs;
}

class ColumnOrderTest : public LinearBlocksTest {};
TM_INSTANTIATE_FOR_CPU_VARIANTS(ColumnOrderTest);

// Rounding rows to 8 bits comes after their columns have found their places.
TEST_P(ColumnOrderTest, GivesTheBitsOfRowsInThatOrder) {
  ForEachFormat([&] {
    const int64_t in_features = InFeatures(3);
    const std::vector<float> norm = RandomFloats(in_features, 4);
    for (const LinearMode mode : {LinearMode::kExact, LinearMode::kInt8}) {
      for (const LinearLayout layout : {LinearLayout::kStacked, LinearLayout::kGateUp}) {
        const std::vector<Part> parts = PartsOf(Type(), OutFeatures(70), in_features, layout);
        std::vector<Part> reordered = parts;
        for (Part& part : reordered) part.order = RandomOrder(in_features, 9);
        for (const int64_t rows : {1, 5, 40}) {
          const Setting setting = {Variant(), mode, 2};
          Fixture in_order(setting, parts, in_features, layout, rows);
          Fixture fixture(setting, reordered, in_features, layout, rows);
          ASSERT_EQ(fixture.packed().segments.size(), 1u);
          const std::vector<int32_t>& order = reordered[0].order;
          const std::vector<float> x = RandomFloats(rows * in_features, 3);
          EXPECT_TRUE(SameBits(fixture.Run(x), in_order.Run(InOrder(x, order)))) << rows << " rows";
          const std::vector<float> signs = RandomSigns(rows * in_features, 5);
          EXPECT_TRUE(
              SameBits(fixture.Run(signs, norm), in_order.Run(InOrder(signs, order), InOrder(norm, order))))
              << rows << " rows, normalised";
        }
      }
    }
  });
}

TEST_P(ColumnOrderTest, OutputsHaveTheSameBitsAtAnyRowCountAndThreadCount) {
  constexpr int64_t kRows = 64;
  for (const Format& format : {Format::InGroups(DType::kInt4, 5, DType::kF16, /*zero_points=*/true),
                               Format(DType::kInt8), Format(DType::kFp8E4M3)}) {
    const int64_t in_features = 3 * format.block_size();
    const std::vector<float> x = RandomFloats(kRows * in_features, 3);
    const std::vector<float> norm = RandomFloats(in_features, 4);
    for (const LinearMode mode : {LinearMode::kExact, LinearMode::kInt8}) {
      for (const LinearLayout layout : {LinearLayout::kStacked, LinearLayout::kGateUp}) {
        std::vector<Part> parts = PartsOf(format, 140, in_features, layout);
        parts[0].order = RandomOrder(in_features, 9);
        parts[1].order = RandomOrder(in_features, 10);
        Fixture alone({Variant(), mode, 1}, parts, in_features, layout, 1);
        std::vector<float> row_by_row;
        for (int64_t row = 0; row < kRows; ++row) {
          const std::vector<float> out = alone.Run(RowsOf(x, row, 1, in_features), norm);
          row_by_row.insert(row_by_row.end(), out.begin(), out.end());
        }
        for (const int32_t threads : {1, 2, 3, 4}) {
          Fixture fixture({Variant(), mode, threads}, parts, in_features, layout, kRows);
          for (const int64_t rows : {1, 2, 3, 7, 8, 9, 16, 17, 64}) {
            const int64_t first = (kRows - rows) / 2;
            EXPECT_TRUE(SameBits(fixture.Run(RowsOf(x, first, rows, in_features), norm),
                                 RowsOf(row_by_row, first, rows, alone.columns())))
                << rows << " rows, " << threads << " threads, mode " << static_cast<int>(mode);
          }
        }
      }
    }
  }
}

TEST_P(ColumnOrderTest, PartsOfDifferentOrdersStayApart) {
  std::vector<Part> parts;
  for (uint32_t i = 0; i < 4; ++i) parts.push_back(RandomPart(DType::kInt4, 34, kMixedK, i + 1));
  parts[0].order = RandomOrder(kMixedK, 1);
  parts[1].order = RandomOrder(kMixedK, 2);
  parts[2].order = parts[1].order;
  const std::vector<float> norm = RandomFloats(kMixedK, 4);
  for (const LinearMode mode : {LinearMode::kExact, LinearMode::kInt8}) {
    for (const int64_t rows : {1, 5, 40}) {
      const std::vector<float> x = RandomFloats(rows * kMixedK, 5);
      Fixture together({Variant(), mode, 2}, parts, kMixedK, LinearLayout::kStacked, rows);
      EXPECT_EQ(together.packed().segments.size(), 3u);
      EXPECT_TRUE(SameBits(together.Run(x, norm), Alone({Variant(), mode, 1}, parts, x, norm)));
    }
  }
}

// The product of two f32, and of silu one by a polynomial: a few roundings.
TEST_P(ColumnOrderTest, GateAndUpOfDifferentOrdersMeet) {
  std::vector<Part> parts = {RandomPart(DType::kInt4, 70, kMixedK, 1),
                             RandomPart(DType::kInt4, 70, kMixedK, 2)};
  parts[0].order = RandomOrder(kMixedK, 1);
  parts[1].order = RandomOrder(kMixedK, 2);
  for (const int64_t rows : {1, 5, 40}) {
    const std::vector<float> x = RandomFloats(rows * kMixedK, 5);
    const Setting setting = {Variant(), LinearMode::kExact, 2};
    const std::vector<float> gate =
        Fixture(setting, {parts[0]}, kMixedK, LinearLayout::kStacked, rows).Run(x);
    const std::vector<float> up = Fixture(setting, {parts[1]}, kMixedK, LinearLayout::kStacked, rows).Run(x);
    const std::vector<float> got = Fixture(setting, parts, kMixedK, LinearLayout::kGateUp, rows).Run(x);
    ASSERT_EQ(got.size(), gate.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const double want = gate[i] / (1.0 + std::exp(-double{gate[i]})) * up[i];
      ASSERT_NEAR(got[i], want, 1e-6 * std::abs(want) + 1e-30) << i;
    }
  }
}

TEST_P(ColumnOrderTest, UnpackedRowsAreInTheOrderOfInputs) {
  for (const Format& format : {Format(DType::kInt4), Format(DType::kBf16)}) {
    Part part = RandomPart(format, 37, kMixedK, 1);
    part.order = RandomOrder(kMixedK, 1);
    Fixture fixture({Variant()}, {part}, kMixedK, LinearLayout::kStacked, 1);
    for (int64_t row = 0; row < 37; ++row) {
      std::vector<float> got(kMixedK);
      UnpackRow(fixture.packed(), row, got.data());
      ASSERT_TRUE(SameBits(InOrder(got, part.order), RowsOf(part.values, row, 1, kMixedK))) << row;
    }
  }
}

TEST(ColumnOrderRefusalTest, WhatIsNoPermutationIsRefused) {
  std::vector<int32_t> order = RandomOrder(128, 1);
  const WeightRows part = {nullptr, DType::kInt4, 8, 128, order.data()};
  const LinearSource source = {&part, 1, 128, LinearLayout::kStacked};
  EXPECT_EQ(WhyNotPackable(source, {}), "");
  for (const int32_t wrong : {order[6], -1, 128}) {
    order[7] = wrong;
    EXPECT_EQ(WhyNotPackable(source, {}), "part 0 has columns in an order that is no permutation of 128");
  }
}

// ---- experts

// An expert whose gate and up differ, beside one whose do not, by the products of each alone.
TEST_P(MixedPartsTest, ExpertsKeepTheirFormats) {
  constexpr int32_t kExperts = 3, kHidden = 256, kInner = 256, kRows = 9;
  const Format gates[] = {DType::kQ4K, DType::kInt4, DType::kBf16};
  const Format ups[] = {DType::kQ6K, DType::kInt4, DType::kQ4_0};
  const Format downs[] = {DType::kQ6K, DType::kInt8, DType::kQ8_0};
  for (const LinearMode mode : {LinearMode::kExact, LinearMode::kInt8}) {
    const BackendPtr backend =
        std::move(MakeCpuBackend({.threads = 2, .variant = GetParam(), .linear = mode})).value();
    ASSERT_EQ(backend->Reserve({.tokens = kRows,
                                .hidden = kHidden,
                                .experts = kExperts,
                                .experts_per_token = 1,
                                .expert_intermediate = kInner}),
              OpCode::kOk);
    std::vector<WeightHandle> gate_up(kExperts), down(kExperts);
    std::vector<Part> kept;
    for (int32_t e = 0; e < kExperts; ++e) {
      const auto seed = static_cast<uint32_t>(e);
      const Part gate = RandomPart(gates[e], kInner, kHidden, seed),
                 up = RandomPart(ups[e], kInner, kHidden, seed + 9),
                 out = RandomPart(downs[e], kHidden, kInner, seed + 20);
      const WeightRows inner[] = {{gate.bytes.data(), gate.type, kInner, kHidden},
                                  {up.bytes.data(), up.type, kInner, kHidden}};
      const WeightRows outer[] = {{out.bytes.data(), out.type, kHidden, kInner}};
      ASSERT_EQ(
          backend->PackLinear({inner, 2, kHidden, LinearLayout::kGateUp}, &gate_up[static_cast<size_t>(e)]),
          OpCode::kOk);
      ASSERT_EQ(
          backend->PackLinear({outer, 1, kInner, LinearLayout::kStacked}, &down[static_cast<size_t>(e)]),
          OpCode::kOk);
    }
    const std::vector<float> x = RandomFloats(kRows * kHidden, 7), norm = RandomFloats(kHidden, 8);
    const std::vector<float> router = RandomFloats(kExperts * kHidden, 9);
    std::vector<float> got(x.size());
    const auto tensor = [](std::vector<float>& of, int64_t columns) {
      return MakeTensor(of.data(), DType::kF32, static_cast<int64_t>(of.size()) / columns, columns);
    };
    std::vector<float> in = x;
    ASSERT_EQ(backend->Moe({.x = tensor(in, kHidden),
                            .rows = kRows,
                            .norm_weight = norm.data(),
                            .norm_epsilon = kEpsilon,
                            .router = router.data(),
                            .experts = kExperts,
                            .experts_per_token = 1,
                            .gate_up = gate_up.data(),
                            .down = down.data(),
                            .out = tensor(got, kHidden)}),
              OpCode::kOk);
    // One expert a row: its share is 1, and its outputs are those of two Linears.
    int32_t seen[kExperts] = {};
    for (int64_t row = 0; row < kRows; ++row) {
      int32_t matches = 0;
      for (int32_t e = 0; e < kExperts; ++e) {
        std::vector<float> one = RowsOf(x, row, 1, kHidden), inner(kInner), outer(kHidden);
        ASSERT_EQ(backend->Linear({.x = tensor(one, kHidden),
                                   .rows = 1,
                                   .prologue = Prologue::kRmsNorm,
                                   .norm_weight = norm.data(),
                                   .norm_epsilon = kEpsilon,
                                   .weight = gate_up[static_cast<size_t>(e)],
                                   .epilogue = Epilogue::kSwiGlu,
                                   .out = tensor(inner, kInner)}),
                  OpCode::kOk);
        ASSERT_EQ(backend->Linear({.x = tensor(inner, kInner),
                                   .rows = 1,
                                   .weight = down[static_cast<size_t>(e)],
                                   .out = tensor(outer, kHidden)}),
                  OpCode::kOk);
        if (SameBits(outer, RowsOf(got, row, 1, kHidden))) {
          ++matches;
          ++seen[e];
        }
      }
      EXPECT_EQ(matches, 1) << "row " << row;
    }
    for (int32_t e = 0; e < kExperts; ++e) EXPECT_GT(seen[e], 0) << "no row took expert " << e;
  }
}

}  // namespace
}  // namespace tramontane
