// Products of fp8 by fp8 in the CUDA backend: weights that stand in rows with a scale each, rows of x that
// are rounded to fp8. On the emulator in every build, on a GPU of compute capability 9.0 in bench/gpu_check.
//
// What is rounded is exact: the bytes of a row are those of its definition, and the product is held to the
// sum of these bytes' values. Up to 16 rows, and where no product of fp8 is made, the weight is decoded as it
// is in units, and gives the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "kernels/core/block_types.h"
#include "kernels/cuda/pointwise.h"
#include "tests/kernels/cuda_linear_case.h"
#include "tests/support/cuda_device.h"
#include "tests/support/random_blocks.h"

namespace tramontane {
namespace {

constexpr double kBf16Unit = 0x1p-8;  // twice the relative error of one rounding to bf16

// ---- rows in fp8 --------------------------------------------------------------------------------

struct Fp8Rows {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

// By its definition (kernels/cuda/pointwise.h).
Fp8Rows Quantised(const std::vector<uint16_t>& x, int64_t width) {
  Fp8Rows out;
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(width)) {
    float largest = 0.0f;
    for (size_t k = row; k < row + static_cast<size_t>(width); ++k) {
      const float magnitude = std::fabs(Bf16ToFloat(x[k]));
      if (!(magnitude <= largest)) largest = magnitude;  // a NaN stays
      if (std::isnan(largest)) break;
    }
    if (largest < cuda::kLeastQuantised) largest = 0.0f;
    out.scales.push_back(largest / 448.0f);
    const float inverse = largest == 0.0f ? 0.0f : 448.0f / largest;
    for (size_t k = row; k < row + static_cast<size_t>(width); ++k)
      out.codes.push_back(FloatToFp8E4M3(Bf16ToFloat(x[k]) * inverse));
  }
  return out;
}

std::vector<float> NormWeights(int64_t width) {
  std::vector<float> weights;
  for (int64_t k = 0; k < width; ++k) weights.push_back(1.0f + 0.25f * static_cast<float>(k % 3));
  return weights;
}

class CudaFp8Rows : public testing::TestWithParam<ThreadOrder> {
 protected:
  void SetUp() override { UseThreadOrder(GetParam()); }

  // Of rows of x, gathered, after a norm or as they are.
  static Fp8Rows QuantisedOnTheDevice(const std::vector<uint16_t>& x, const std::vector<int32_t>& rows,
                                      int32_t width, bool norm) {
    const auto count = static_cast<int32_t>(rows.size());
    const DeviceArray device_x(x);
    const DeviceArray device_rows(rows);
    const DeviceArray weights(NormWeights(width));
    const DeviceArray codes(std::vector<uint8_t>(rows.size() * static_cast<size_t>(width), 0x55));
    const DeviceArray scales(std::vector<float>(rows.size(), -1.0f));
    EXPECT_EQ(cuda::LaunchQuantiseRows({.x = device_x.data(),
                                        .x_rows = device_rows.data(),
                                        .norm_weight = norm ? weights.data() : nullptr,
                                        .y = codes.data(),
                                        .scales = scales.data(),
                                        .x_stride = width,
                                        .rows = count,
                                        .width = width,
                                        .epsilon = 1e-5f},
                                       nullptr),
              0);
    return {codes.Get(), scales.Get()};
  }
  static void ExpectSameBytes(const Fp8Rows& got, const Fp8Rows& want) {
    ASSERT_EQ(got.codes.size(), want.codes.size());
    EXPECT_EQ(std::memcmp(got.codes.data(), want.codes.data(), want.codes.size()), 0);
    ASSERT_EQ(got.scales.size(), want.scales.size());
    EXPECT_EQ(std::memcmp(got.scales.data(), want.scales.data(), want.scales.size() * sizeof(float)), 0);
  }
};

INSTANTIATE_TEST_SUITE_P(Orders, CudaFp8Rows, testing::ValuesIn(ThreadOrders()),
                         [](const auto& info) { return "Order" + std::to_string(info.index); });

std::vector<uint16_t> Rows(const std::vector<uint16_t>& x, const std::vector<int32_t>& rows, int64_t width) {
  std::vector<uint16_t> out;
  for (const int32_t row : rows)
    out.insert(out.end(), x.begin() + row * width, x.begin() + (row + 1) * width);
  return out;
}

// Rows of one turn of the block's threads and of more, of a part of it, in other orders than they lie.
TEST_P(CudaFp8Rows, HaveTheBytesOfTheirDefinition) {
  for (const int32_t width : {8, 264, 4096, 4864}) {
    const std::vector<uint16_t> x = RandomBf16(5 * int64_t{width}, static_cast<uint64_t>(width), 3.0f);
    const std::vector<int32_t> rows = {4, 0, 4, 2};
    ExpectSameBytes(QuantisedOnTheDevice(x, rows, width, /*norm=*/false),
                    Quantised(Rows(x, rows, width), width));
  }
}

// The norm's kernel and then the definition: what the fused kernel makes is rounded to bf16 between them.
TEST_P(CudaFp8Rows, BehindANormHaveTheBytesOfTheNormsRows) {
  for (const int32_t width : {264, 4864}) {
    const std::vector<uint16_t> x = RandomBf16(5 * int64_t{width}, 1, 3.0f);
    const std::vector<int32_t> rows = {4, 0, 4};
    const DeviceArray device_x(x),
        normalised(std::vector<uint16_t>(rows.size() * static_cast<size_t>(width)));
    const DeviceArray device_rows(rows);
    const DeviceArray weights(NormWeights(width));
    ASSERT_EQ(cuda::LaunchRmsNorm({device_x.data(), device_rows.data(), weights.data(), normalised.data(),
                                   width, 3, width, 1e-5f},
                                  nullptr),
              0);
    ExpectSameBytes(QuantisedOnTheDevice(x, rows, width, /*norm=*/true), Quantised(normalised.Get(), width));
  }
}

// A row of zeros and one too small are zeros; the largest number stays; what is no number is none afterwards.
TEST_P(CudaFp8Rows, AtTheirEnds) {
  constexpr int32_t kWidth = 16;
  const float kNan = std::numeric_limits<float>::quiet_NaN(),
              kInfinity = std::numeric_limits<float>::infinity();
  std::vector<uint16_t> x;
  for (const float largest : {0.0f, 9e-31f, -2e-30f, 448.0f, -3.3e38f, kNan, kInfinity}) {
    for (int k = 0; k < kWidth; ++k)
      x.push_back(FloatToBf16(k == 9 ? largest : std::clamp(0.25f * largest, -1e30f, 1e30f) * (k % 3 == 0)));
  }
  const std::vector<int32_t> rows = {0, 1, 2, 3, 4, 5, 6};
  const Fp8Rows got = QuantisedOnTheDevice(x, rows, kWidth, /*norm=*/false);
  const auto code = [&](size_t row, size_t k) { return got.codes[row * kWidth + k]; };
  for (const size_t row : {0, 1}) {
    EXPECT_EQ(got.scales[row], 0.0f);
    for (size_t k = 0; k < kWidth; ++k) EXPECT_EQ(code(row, k) & 0x7f, 0) << row;
  }
  EXPECT_EQ(code(2, 9), 0xfe) << "-448";
  EXPECT_EQ(got.scales[3], 1.0f);
  EXPECT_EQ(code(3, 9), 0x7e);
  EXPECT_EQ(Fp8E4M3ToFloat(code(3, 0)), 112.0f);
  EXPECT_EQ(code(4, 9), 0xfe);
  EXPECT_TRUE(std::isnan(got.scales[5]));
  EXPECT_EQ(code(5, 9), 0x7f);
  EXPECT_TRUE(std::isinf(got.scales[6]));
  EXPECT_EQ(code(6, 9), 0x7f) << "times a scale without end";
}

// ---- weights in rows ----------------------------------------------------------------------------

StepMaxima Maxima() {
  return {.tokens = 80,
          .sequences = 1,
          .logit_rows = 80,
          .hidden = 1024,
          .query_heads = 1,
          .kv_heads = 1,
          .head_dim = 32,
          .vocab = 8,
          .context = 8,
          .quantised_numbers = 96 * 768};
}

// Random numbers, each row of one scale, or all rows.
struct Fp8Matrix {
  Format format;
  int64_t rows, columns;
  std::vector<std::byte> blocks;

  Fp8Matrix(const Format& of, int64_t r, int64_t c, uint32_t seed, bool of_tensor = false)
      : format(of), rows(r), columns(c), blocks(RandomBlocks(of, r, c, seed)) {
    const auto row_bytes = static_cast<size_t>(format.Bytes(columns));
    const auto scale_bytes = static_cast<size_t>(format.scale_bytes());
    for (size_t row = 0; row < blocks.size(); row += row_bytes) {
      // In pairs where that is how the format has them.
      const size_t from = of_tensor                                            ? 0
                          : row / row_bytes % 2 == 1 && format.scale_rows == 2 ? row - row_bytes
                                                                               : row;
      for (size_t at = row; at < row + row_bytes; at += static_cast<size_t>(format.block_bytes))
        std::memmove(&blocks[at], &blocks[from], scale_bytes);
    }
  }
  WeightRows Rows(bool scale_of_row = true) const {
    return {.data = blocks.data(),
            .format = format,
            .rows = rows,
            .row_stride = columns,
            .scale_of_row = scale_of_row ? 1 : 0};
  }
};

// Every way in which scales of rows come: a tensor's, in pairs, in 16 bits, of rows of any number of groups.
std::vector<Fp8Matrix> Matrices(int64_t rows, uint32_t seed) {
  const auto of = [](int32_t log2, DType scales, int32_t rows_of_scale = 1) {
    return Format::InGroups(DType::kFp8E4M3, log2, scales, /*zero_points=*/false, rows_of_scale);
  };
  return {Fp8Matrix(of(5, DType::kBf16), rows, 160, seed), Fp8Matrix(of(6, DType::kF16), rows, 64, seed),
          Fp8Matrix(of(8, DType::kF32), rows, 768, seed),
          Fp8Matrix(of(7, DType::kF32, /*rows_of_scale=*/2), rows, 128, seed),
          Fp8Matrix(of(8, DType::kF32), rows, 256, seed, /*of_tensor=*/true)};
}

struct Case {
  int32_t rows;
  Prologue prologue;
  Epilogue epilogue;
  DType out_dtype = DType::kBf16;
};

// What an output holds before.
std::vector<uint16_t> Residual(int64_t count) { return RandomBf16(count, 9); }

// What a linear layer gives on a backend, as numbers of 16 bits: of f32 both halves.
std::vector<uint16_t> LinearOn(CudaTestDevice& device, const Case& c, const std::vector<WeightRows>& parts,
                               int64_t in, const std::vector<uint16_t>& x) {
  const bool swiglu = c.epilogue == Epilogue::kSwiGlu;
  int64_t width = 0;
  for (const WeightRows& part : parts) width += part.rows;
  width = swiglu ? width / 2 : width;
  EXPECT_EQ(device.backend->Reserve(Maxima()), OpCode::kOk) << device.backend->last_error();
  LinearParams params;
  EXPECT_EQ(device.backend->PackLinear({parts.data(), static_cast<int32_t>(parts.size()), in,
                                        swiglu ? LinearLayout::kGateUp : LinearLayout::kStacked},
                                       &params.weight),
            OpCode::kOk)
      << device.backend->last_error();
  const int64_t count = c.rows * width * (c.out_dtype == DType::kF32 ? 2 : 1);
  uint16_t* out = device.Upload(Residual(count));
  params.x = MakeTensor(device.Upload(x), DType::kBf16, c.rows, in);
  params.rows = c.rows;
  params.prologue = c.prologue;
  params.norm_weight = device.Upload(NormWeights(in));
  params.norm_epsilon = 1e-5f;
  params.epilogue = c.epilogue;
  params.out = MakeTensor(out, c.out_dtype, c.rows, width);
  EXPECT_EQ(device.backend->Linear(params), OpCode::kOk) << device.backend->last_error();
  return device.Read(out, static_cast<size_t>(count));
}

const Case kFewRows[] = {{1, Prologue::kRmsNorm, Epilogue::kNone},
                         {1, Prologue::kNone, Epilogue::kAddResidual},
                         {7, Prologue::kRmsNorm, Epilogue::kSwiGlu},
                         {16, Prologue::kNone, Epilogue::kNone}};
const Case kManyRows[] = {{17, Prologue::kNone, Epilogue::kNone},
                          {30, Prologue::kRmsNorm, Epilogue::kSwiGlu},
                          {70, Prologue::kNone, Epilogue::kAddResidual},
                          {33, Prologue::kRmsNorm, Epilogue::kNone}};

// On a backend that was asked for products of fp8 and on one that was not.
void ExpectTheBitsOfUnits(BackendPtr asked, const Case& c, const std::vector<WeightRows>& parts, int64_t in) {
  const std::vector<uint16_t> x = RandomBf16(c.rows * in, 2);
  CudaTestDevice of_rows(std::move(asked)), of_units(MakeCudaTestBackend());
  const auto got = LinearOn(of_rows, c, parts, in, x), want = LinearOn(of_units, c, parts, in, x);
  EXPECT_EQ(got, want) << c.rows << " rows of " << in << ", " << FormatName(parts[0].format);
}

class CudaFp8 : public testing::Test {
 protected:
  void SetUp() override {
    UseThreadOrder(ThreadOrder::kForward);
    if (MakeFp8CudaTestBackend(Fp8Library::kHasProducts) == nullptr)
      GTEST_SKIP() << "the device has no products of fp8 by fp8 with a scale a row";
  }
};

TEST_F(CudaFp8, WeightsInRowsGiveFewRowsTheBitsOfUnits) {
  for (const Case& c : kFewRows) {
    const std::vector<Fp8Matrix> first = Matrices(48, 1), second = Matrices(48, 2);
    for (size_t i = 0; i < first.size(); ++i) {
      ExpectTheBitsOfUnits(MakeFp8CudaTestBackend(Fp8Library::kHasProducts), c,
                           {first[i].Rows(), second[i].Rows()}, first[i].columns);
    }
  }
}

TEST_F(CudaFp8, WhereTheLibraryHasNoProductManyRowsHaveTheBitsOfUnits) {
  if (MakeFp8CudaTestBackend(Fp8Library::kRefuses) == nullptr) GTEST_SKIP() << "the library has them";
  for (const Case& c : kManyRows) {
    const std::vector<Fp8Matrix> first = Matrices(48, 1), second = Matrices(48, 2);
    for (size_t i = 0; i < first.size(); ++i) {
      ExpectTheBitsOfUnits(MakeFp8CudaTestBackend(Fp8Library::kRefuses), c,
                           {first[i].Rows(), second[i].Rows()}, first[i].columns);
    }
  }
}

// Results in f32, which only logits have, parts whose rows are no sixteens, and rows of several scales.
TEST_F(CudaFp8, WhatHasNoProductOfFp8HasTheBitsOfUnits) {
  const Format format = Format::InGroups(DType::kFp8E4M3, 6, DType::kF32);
  const Fp8Matrix first(format, 48, 128, 1), second(format, 24, 128, 2);
  const Case many = {20, Prologue::kRmsNorm, Epilogue::kNone},
             wide = {20, Prologue::kNone, Epilogue::kNone, DType::kF32};
  const auto fp8 = [] { return MakeFp8CudaTestBackend(Fp8Library::kHasProducts); };
  ExpectTheBitsOfUnits(fp8(), wide, {first.Rows(), first.Rows()}, 128);
  ExpectTheBitsOfUnits(fp8(), many, {second.Rows(), second.Rows()}, 128);
  ExpectTheBitsOfUnits(fp8(), many, {first.Rows(/*scale_of_row=*/false)}, 128);
}

// The scale stands once a row, whatever groups have, beside as many bytes as there are numbers.
TEST_F(CudaFp8, WeightsInRowsTakeAByteANumberAndFourARow) {
  const BackendPtr backend = MakeFp8CudaTestBackend(Fp8Library::kHasProducts), plain = MakeCudaTestBackend();
  for (const Fp8Matrix& matrix : Matrices(160, 1)) {
    const WeightRows rows = matrix.Rows(), several = matrix.Rows(/*scale_of_row=*/false);
    const int64_t in = matrix.columns, bytes = 160 * in;
    EXPECT_EQ(backend->PackedBytes({&rows, 1, in}), (bytes + 255) / 256 * 256 + 3 * 256) << in;
    for (const WeightUse use : {WeightUse::kTable, WeightUse::kHead, WeightUse::kExpert}) {
      const LinearSource source = {.parts = &rows, .part_count = 1, .in_features = in, .use = use};
      EXPECT_EQ(backend->PackedBytes(source), plain->PackedBytes(source));
    }
    EXPECT_EQ(backend->PackedBytes({&several, 1, in}), plain->PackedBytes({&several, 1, in}));
    EXPECT_EQ(plain->PackedBytes({&rows, 1, in}), plain->PackedBytes({&several, 1, in}));
  }
}

// ---- products of fp8 by fp8 ---------------------------------------------------------------------

// Sums of products of fp8, before their scales; and the sum of magnitudes.
struct Sum {
  double value = 0, magnitude = 0;
};

// A tensor core adds products of fp8 with fewer bits than f32 has, and hands them to f32 every so often:
// cuBLASLt says no more. 2^-12 of the magnitudes is held against it; the emulator adds in f32.
constexpr double kSumUnit = 0x1p-12;

// Rows of fp8 by a weight of two parts, each number as it stands.
std::vector<Sum> Products(const Fp8Rows& x, const std::vector<const Fp8Matrix*>& parts, int64_t rows,
                          int64_t in) {
  std::vector<Sum> out;
  for (int64_t r = 0; r < rows; ++r) {
    for (const Fp8Matrix* part : parts) {
      const std::vector<float> weight = DecodedBlocks(part->format, part->blocks);
      for (int64_t n = 0; n < part->rows; ++n) {
        Sum sum;
        for (int64_t k = 0; k < in; ++k) {
          const double product = double{Fp8E4M3ToFloat(x.codes[static_cast<size_t>(r * in + k)])} *
                                 x.scales[static_cast<size_t>(r)] * weight[static_cast<size_t>(n * in + k)];
          sum.value += product;
          sum.magnitude += std::fabs(product);
        }
        out.push_back(sum);
      }
    }
  }
  return out;
}

// Rows as the backend's own norm gives them.
std::vector<uint16_t> Normalised(const std::vector<uint16_t>& x, int32_t rows, int64_t in) {
  const auto width = static_cast<int32_t>(in);
  const DeviceArray device_x(x), y(std::vector<uint16_t>(x.size()));
  const DeviceArray weights(NormWeights(in));
  EXPECT_EQ(cuda::LaunchRmsNorm({device_x.data(), nullptr, weights.data(), y.data(), in, rows, width, 1e-5f},
                                nullptr),
            0);
  return y.Get();
}

double Silu(double value) { return value / (1.0 + std::exp(-value)); }

// Parts with scales of their own: gate and up in turns of eight, residuals that are added to, norms fused
// with the rounding. Every output is that of the rounded rows.
TEST_F(CudaFp8, ManyRowsAreThoseOfTheirNumbersInFp8) {
  for (const ThreadOrder order : ThreadOrders()) {
    UseThreadOrder(order);
    for (const Case& c : kManyRows) {
      const std::vector<Fp8Matrix> firsts = Matrices(48, 1), seconds = Matrices(48, 2);
      for (size_t i = 0; i < firsts.size(); ++i) {
        const Fp8Matrix &first = firsts[i], &second = seconds[i];
        const int64_t in = first.columns, width = c.epilogue == Epilogue::kSwiGlu ? 48 : 96;
        const std::vector<uint16_t> x = RandomBf16(c.rows * in, 2);
        CudaTestDevice device(MakeFp8CudaTestBackend(Fp8Library::kHasProducts));
        const auto got = LinearOn(device, c, {first.Rows(), second.Rows()}, in, x);
        const Fp8Rows rows = Quantised(c.prologue == Prologue::kRmsNorm ? Normalised(x, c.rows, in) : x, in);
        const std::vector<Sum> sums = Products(rows, {&first, &second}, c.rows, in);
        const std::vector<uint16_t> residual = Residual(c.rows * width);
        for (int64_t r = 0; r < c.rows; ++r) {
          for (int64_t n = 0; n < width; ++n) {
            const Sum& sum = sums[static_cast<size_t>(r * 96 + n)];
            double want = sum.value, allowed = kSumUnit * sum.magnitude;
            if (c.epilogue == Epilogue::kSwiGlu) {
              const Sum& up = sums[static_cast<size_t>(r * 96 + 48 + n)];
              const double gate_error = allowed + kBf16Unit * std::fabs(sum.value),
                           up_error = kSumUnit * up.magnitude + kBf16Unit * std::fabs(up.value);
              want = Silu(sum.value) * up.value;
              allowed =
                  1.1 * gate_error * (std::fabs(up.value) + up_error) + std::fabs(Silu(sum.value)) * up_error;
            } else if (c.epilogue == Epilogue::kAddResidual) {
              want += Bf16ToFloat(residual[static_cast<size_t>(r * width + n)]);
              if (ProductsAreRoundedBeforeTheyAreAdded()) allowed += kBf16Unit * std::fabs(sum.value);
            }
            allowed += kBf16Unit * (std::fabs(want) + allowed);
            ASSERT_NEAR(Bf16ToFloat(got[static_cast<size_t>(r * width + n)]), want, allowed)
                << c.rows << " rows of " << in << ": row " << r << " output " << n;
          }
        }
      }
    }
  }
}

// Parts in bf16 and in fp8 of several scales stand in one weight beside those in rows; the norm is made once
// for either kind.
TEST_F(CudaFp8, PartsOfOtherFormsStandBesideThoseInRows) {
  const Format format = Format::InGroups(DType::kFp8E4M3, 6, DType::kF32);
  const int64_t in = 128;
  const Fp8Matrix in_rows(format, 32, in, 1), in_units(format, 16, in, 2);
  const std::vector<uint16_t> plain = RandomBf16(16 * in, 3, 0.1f);
  const Case c = {20, Prologue::kRmsNorm, Epilogue::kNone};
  const std::vector<uint16_t> x = RandomBf16(c.rows * in, 4);
  const std::vector<WeightRows> parts = {in_units.Rows(/*scale_of_row=*/false),
                                         in_rows.Rows(),
                                         {.data = plain.data(), .rows = 16, .row_stride = in}};
  CudaTestDevice device(MakeFp8CudaTestBackend(Fp8Library::kHasProducts)), exact(MakeCudaTestBackend());
  const auto got = LinearOn(device, c, parts, in, x), as_exact = LinearOn(exact, c, parts, in, x);
  const std::vector<Sum> sums = Products(Quantised(Normalised(x, c.rows, in), in), {&in_rows}, c.rows, in);
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t row = i / 64, out = i % 64;
    if (out < 16 || out >= 48) {
      ASSERT_EQ(got[i], as_exact[i]) << "row " << row << " output " << out;
      continue;
    }
    const Sum& sum = sums[row * 32 + out - 16];
    ASSERT_NEAR(Bf16ToFloat(got[i]), sum.value, kSumUnit * sum.magnitude + kBf16Unit * std::fabs(sum.value));
  }
}

}  // namespace
}  // namespace tramontane
