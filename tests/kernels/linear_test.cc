// Linear of the CPU backend: every variant, weight dtype, layout, prologue and epilogue against the
// definition in double precision, and bit for bit against itself over rows, threads and places in the batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/backends/cpu_backend.h"
#include "kernels/cpu/linear.h"
#include "tests/reference/linear.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

using reference::Matrix;

constexpr double kRoundoffF32 = 0x1p-24;
constexpr double kRoundoffBf16 = 0x1p-8;
constexpr float kEpsilon = 1e-5f;

std::vector<float> RandomFloats(int64_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// A matrix as a file would hold it, rows `row_stride` elements apart, and its exact values.
class FileMatrix {
 public:
  FileMatrix(DType dtype, int64_t rows, int64_t columns, uint32_t seed)
      : dtype_(dtype), rows_(rows), row_stride_(columns + 3), values_(rows, columns) {
    const std::vector<float> random = RandomFloats(rows * columns, seed, 0.5f);
    bytes_.resize(static_cast<size_t>(Format(dtype).Bytes(rows * row_stride_)));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t k = 0; k < columns; ++k) Put(row, k, random[static_cast<size_t>(row * columns + k)]);
    }
  }

  void Put(int64_t row, int64_t k, float value) {
    std::byte* at = bytes_.data() + Format(dtype_).Bytes(row * row_stride_ + k);
    if (dtype_ == DType::kF32) {
      std::memcpy(at, &value, 4);
    } else {
      const uint16_t bits = dtype_ == DType::kBf16 ? FloatToBf16(value) : FloatToF16(value);
      std::memcpy(at, &bits, 2);
      value = dtype_ == DType::kBf16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
    }
    values_.At(row, k) = value;
  }

  WeightRows Rows(int64_t begin, int64_t end) const {
    return {.data = bytes_.data() + Format(dtype_).Bytes(begin * row_stride_),
            .format = dtype_,
            .rows = end - begin,
            .row_stride = row_stride_};
  }
  const Matrix& values() const { return values_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return values_.columns; }

 private:
  DType dtype_;
  int64_t rows_;
  int64_t row_stride_;
  Matrix values_;
  std::vector<std::byte> bytes_;
};

struct Call {
  Prologue prologue = Prologue::kNone;
  Epilogue epilogue = Epilogue::kNone;
  std::vector<int32_t> x_rows;  // empty: all rows of x in order
};

// One backend with one packed weight.
class Fixture {
 public:
  Fixture(const std::string& variant, int32_t threads, const FileMatrix& matrix, LinearLayout layout,
          int32_t max_rows)
      : out_features_(matrix.rows()), in_features_(matrix.columns()), layout_(layout) {
    backend_ = std::move(MakeCpuBackend({.threads = threads, .variant = variant})).value();
    // Stacked sources come in two parts of unequal rows where they can, as q, k and v do.
    const int64_t half = layout == LinearLayout::kGateUp ? out_features_ / 2 : (out_features_ + 2) / 3;
    const WeightRows parts[] = {matrix.Rows(0, half), matrix.Rows(half, out_features_)};
    const LinearSource source = {.parts = parts,
                                 .part_count = half == out_features_ ? 1 : 2,
                                 .in_features = in_features_,
                                 .layout = layout};
    TM_CHECK(backend_->PackLinear(source, &weight_) == OpCode::kOk, "%s", backend_->last_error());
    const StepMaxima maxima = {.tokens = max_rows, .hidden = static_cast<int32_t>(in_features_)};
    TM_CHECK(backend_->Reserve(maxima) == OpCode::kOk, "%s", backend_->last_error());
  }

  int64_t out_columns() const { return layout_ == LinearLayout::kGateUp ? out_features_ / 2 : out_features_; }
  const PackedWeight& packed() const { return *static_cast<const PackedWeight*>(weight_.impl); }
  Backend& backend() { return *backend_; }
  WeightHandle weight() const { return weight_; }

  // x [.., in_features]. `residual`: what out holds before the call, empty for zeros.
  std::vector<float> Run(const Call& call, const std::vector<float>& x, const std::vector<float>& norm_weight,
                         const std::vector<float>& residual = {}) {
    const int64_t x_count = static_cast<int64_t>(x.size()) / in_features_;
    const int64_t rows = call.x_rows.empty() ? x_count : static_cast<int64_t>(call.x_rows.size());
    // Rows of out stand apart; what lies between must stay as it was.
    const int64_t stride = out_columns() + 5;
    constexpr float kUntouched = 12345.0f;
    std::vector<float> out(static_cast<size_t>(rows * stride), kUntouched);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t c = 0; c < out_columns(); ++c) {
        out[static_cast<size_t>(row * stride + c)] =
            residual.empty() ? std::numeric_limits<float>::quiet_NaN()
                             : residual[static_cast<size_t>(row * out_columns() + c)];
      }
    }
    LinearParams params = {
        .x = MakeTensor(const_cast<float*>(x.data()), DType::kF32, x_count, in_features_),
        .x_rows = call.x_rows.empty() ? nullptr : call.x_rows.data(),
        .rows = static_cast<int32_t>(rows),
        .prologue = call.prologue,
        .norm_weight = norm_weight.data(),
        .norm_epsilon = kEpsilon,
        .weight = weight_,
        .epilogue = call.epilogue,
        .out = MakeTensor(out.data(), DType::kF32, rows, out_columns()),
    };
    params.out.row_stride = stride;
    EXPECT_EQ(backend_->Linear(params), OpCode::kOk);
    std::vector<float> dense;
    for (int64_t row = 0; row < rows; ++row) {
      const auto begin = out.begin() + row * stride;
      dense.insert(dense.end(), begin, begin + out_columns());
      EXPECT_TRUE(
          std::all_of(begin + out_columns(), begin + stride, [&](float v) { return v == kUntouched; }))
          << "wrote beyond row " << row;
    }
    return dense;
  }

 private:
  int64_t out_features_;
  int64_t in_features_;
  LinearLayout layout_;
  BackendPtr backend_;
  WeightHandle weight_;
};

class LinearTest : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  void SetUp() override {
    const std::vector<std::string> available = CpuVariants();
    if (std::find(available.begin(), available.end(), Variant()) == available.end()) {
      GTEST_SKIP() << "this machine cannot run variant " << Variant();
    }
  }
  static std::string Variant() { return std::get<0>(GetParam()); }
  static DType Dtype() { return std::get<1>(GetParam()); }
  static bool RoundsInputs() { return tramontane::RoundsInputs(Variant()) && Dtype() == DType::kBf16; }
};

Matrix ToMatrix(const std::vector<float>& values, int64_t columns) {
  Matrix matrix(static_cast<int64_t>(values.size()) / columns, columns);
  std::copy(values.begin(), values.end(), matrix.data.begin());
  return matrix;
}

// Compares one call with the definition. The tolerance of an output y = sum over k of x_k w_k:
// - K additions and products in f32 err by at most K roundoffs of sum |x_k w_k| (Higham, section 3.1);
// - a row normalised in f32 differs by its sum of squares (K roundoffs, halved by the root) and 6 more
//   operations;
// - inputs rounded to bf16 differ by one roundoff of bf16 each. Where there is no norm the reference is
//   given the rounded inputs, so nothing of this is left.
// SwiGLU: |silu'| <= 1.1, so gate's error counts 1.1 |up| times, up's |silu(gate)| times, and silu itself is
// good to 8 roundoffs. Adding the residual rounds once more.
void ExpectMatchesDefinition(const Call& call, const std::vector<float>& got, const FileMatrix& weight,
                             std::vector<float> x, const std::vector<float>& norm_weight,
                             const std::vector<float>& residual, bool rounds_inputs) {
  const int64_t in_features = weight.columns();
  const bool normalises = call.prologue == Prologue::kRmsNorm;
  double relative = (static_cast<double>(in_features) + 1.0) * kRoundoffF32;
  if (normalises) relative += (static_cast<double>(in_features) / 2.0 + 6.0) * kRoundoffF32;
  if (rounds_inputs) {
    if (normalises) {
      relative += kRoundoffBf16 * 1.01;
    } else {
      for (float& value : x) value = RoundToBf16(value);
    }
  }
  Matrix chosen = ToMatrix(x, in_features);
  if (!call.x_rows.empty()) {
    const Matrix all = chosen;
    chosen = Matrix(static_cast<int64_t>(call.x_rows.size()), in_features);
    for (int64_t row = 0; row < chosen.rows; ++row) {
      for (int64_t k = 0; k < in_features; ++k) {
        chosen.At(row, k) = all.At(call.x_rows[static_cast<size_t>(row)], k);
      }
    }
  }
  if (normalises) {
    chosen = reference::RmsNorm(chosen, std::vector<double>(norm_weight.begin(), norm_weight.end()),
                                static_cast<double>(kEpsilon));
  }
  const Matrix product = reference::MultiplyTransposed(chosen, weight.values());
  const Matrix magnitude = reference::Magnitude(chosen, weight.values());
  const int64_t columns = call.epilogue == Epilogue::kSwiGlu ? product.columns / 2 : product.columns;
  ASSERT_EQ(static_cast<int64_t>(got.size()), product.rows * columns);
  for (int64_t row = 0; row < product.rows; ++row) {
    for (int64_t c = 0; c < columns; ++c) {
      double want = product.At(row, c);
      double tolerance = relative * magnitude.At(row, c);
      if (call.epilogue == Epilogue::kSwiGlu) {
        const double gate = want;
        const double up = product.At(row, columns + c);
        want = reference::Silu(gate) * up;
        tolerance = 1.1 * tolerance * std::abs(up) +
                    std::abs(reference::Silu(gate)) * relative * magnitude.At(row, columns + c) +
                    8.0 * kRoundoffF32 * std::abs(want);
        // both errors at once
        tolerance *= 1.0 + relative * (magnitude.At(row, c) + magnitude.At(row, columns + c));
      } else if (call.epilogue == Epilogue::kAddResidual) {
        want += residual[static_cast<size_t>(row * columns + c)];
        tolerance += kRoundoffF32 * std::abs(want);
      }
      ASSERT_NEAR(got[static_cast<size_t>(row * columns + c)], want, tolerance + 1e-37)
          << "row " << row << " of " << product.rows << ", column " << c << " of " << columns << ", K "
          << in_features;
    }
  }
}

TEST_P(LinearTest, MatchesTheDefinitionForEveryPrologueAndEpilogue) {
  struct Shape {
    int64_t out_features, in_features, rows;
  };
  // Ends of vectors, panels, tiles, blocks and K blocks, one less and one more; the dearest last.
  std::vector<Shape> shapes = {{2, 1, 1},      {6, 2, 2},      {30, 17, 3},    {32, 64, 5},
                               {34, 63, 6},    {64, 65, 7},    {66, 256, 13},  {130, 255, 14},
                               {126, 257, 15}, {1000, 40, 64}, {258, 513, 29}, {386, 300, 259}};
  shapes.resize(static_cast<size_t>(ScaledCount(static_cast<int64_t>(shapes.size()), 9)));
  for (const Shape& shape : shapes) {
    const FileMatrix weight(Dtype(), shape.out_features, shape.in_features, 1);
    const std::vector<float> x = RandomFloats(shape.rows * shape.in_features, 2);
    const std::vector<float> norm_weight = RandomFloats(shape.in_features, 3);
    for (const Epilogue epilogue : {Epilogue::kNone, Epilogue::kAddResidual, Epilogue::kSwiGlu}) {
      const LinearLayout layout =
          epilogue == Epilogue::kSwiGlu ? LinearLayout::kGateUp : LinearLayout::kStacked;
      Fixture fixture(Variant(), 2, weight, layout, static_cast<int32_t>(shape.rows));
      std::vector<float> residual;
      if (epilogue == Epilogue::kAddResidual) residual = RandomFloats(shape.rows * shape.out_features, 4);
      for (const Prologue prologue : {Prologue::kNone, Prologue::kRmsNorm}) {
        const Call call = {.prologue = prologue, .epilogue = epilogue, .x_rows = {}};
        const std::vector<float> got = fixture.Run(call, x, norm_weight, residual);
        ExpectMatchesDefinition(call, got, weight, x, norm_weight, residual, RoundsInputs());
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(LinearTest, ReadsTheRowsItIsTold) {
  const FileMatrix weight(Dtype(), 70, 90, 5);
  const std::vector<float> x = RandomFloats(40 * 90, 6);
  const std::vector<float> norm_weight = RandomFloats(90, 7);
  Fixture fixture(Variant(), 2, weight, LinearLayout::kStacked, 64);
  for (const Prologue prologue : {Prologue::kNone, Prologue::kRmsNorm}) {
    for (const std::vector<int32_t>& rows : {std::vector<int32_t>{39},
                                             {3, 3, 0},
                                             {39, 0, 17, 5, 8, 1, 2, 33, 20, 21, 22, 23, 24, 25, 26, 9, 4}}) {
      const Call call = {.prologue = prologue, .epilogue = Epilogue::kNone, .x_rows = rows};
      ExpectMatchesDefinition(call, fixture.Run(call, x, norm_weight), weight, x, norm_weight, {},
                              RoundsInputs());
    }
  }
}

TEST_P(LinearTest, NoRowsIsNoWork) {
  const FileMatrix weight(Dtype(), 4, 8, 8);
  Fixture fixture(Variant(), 1, weight, LinearLayout::kStacked, 1);
  EXPECT_TRUE(fixture.Run({}, {}, {}).empty());
}

// K odd and beyond several blocks, N beyond several blocks of panels, rows beyond a block of tiles.
TEST_P(LinearTest, OutputsHaveTheSameBitsAtAnyRowCountThreadCountAndPlace) {
  // Scaled down, still two blocks of K and of panels, and more than two tiles.
  const int64_t in_features = ScaledCount(1031, 261);
  const int64_t out_features = ScaledCount(419, 140) * 2;
  const int64_t row_count = ScaledCount(300, 31);
  const FileMatrix weight(Dtype(), out_features, in_features, 9);
  const std::vector<float> x = RandomFloats(row_count * in_features, 10);
  const std::vector<float> norm_weight = RandomFloats(in_features, 11);
  for (const Epilogue epilogue : {Epilogue::kNone, Epilogue::kAddResidual, Epilogue::kSwiGlu}) {
    const LinearLayout layout =
        epilogue == Epilogue::kSwiGlu ? LinearLayout::kGateUp : LinearLayout::kStacked;
    const Call call = {.prologue = Prologue::kRmsNorm, .epilogue = epilogue, .x_rows = {}};
    Fixture alone(Variant(), 1, weight, layout, 1);
    const int64_t columns = alone.out_columns();
    std::vector<float> residual;
    if (epilogue == Epilogue::kAddResidual) residual = RandomFloats(row_count * columns, 12);
    const auto slice = [](const std::vector<float>& from, int64_t begin, int64_t count, int64_t width) {
      return from.empty()
                 ? from
                 : std::vector<float>(from.begin() + begin * width, from.begin() + (begin + count) * width);
    };

    std::vector<float> row_by_row;
    for (int64_t row = 0; row < row_count; ++row) {
      const std::vector<float> out =
          alone.Run(call, slice(x, row, 1, in_features), norm_weight, slice(residual, row, 1, columns));
      row_by_row.insert(row_by_row.end(), out.begin(), out.end());
    }
    for (int32_t threads = 1; threads <= 4; ++threads) {
      Fixture fixture(Variant(), threads, weight, layout, static_cast<int32_t>(row_count));
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17, 28, 29, 64, 257, 300}) {
        if (rows > row_count) continue;
        const int64_t first = (row_count - rows) / 2;  // another place than row_by_row's
        const std::vector<float> out = fixture.Run(call, slice(x, first, rows, in_features), norm_weight,
                                                   slice(residual, first, rows, columns));
        ASSERT_EQ(std::memcmp(out.data(), row_by_row.data() + first * columns, out.size() * sizeof(float)), 0)
            << rows << " rows, " << threads << " threads, epilogue " << static_cast<int>(epilogue);
      }
    }
  }
}

// Where subnormal numbers count as zero they do so at every row count.
TEST_P(LinearTest, OutputsHaveTheSameBitsWhereNumbersAreSubnormal) {
  constexpr int64_t kInFeatures = 61, kOutFeatures = 40, kRows = 29;
  FileMatrix weight(Dtype(), kOutFeatures, kInFeatures, 19);
  const float tiny = Dtype() == DType::kF16 ? 1e-6f : 1e-38f;
  for (int64_t row = 0; row < kOutFeatures; ++row) {
    for (int64_t k = row % 3; k < kInFeatures; k += 3)
      weight.Put(row, k, tiny * static_cast<float>(k - 30) / 30.0f);
  }
  std::vector<float> x = RandomFloats(kRows * kInFeatures, 20);
  for (size_t i = 0; i < x.size(); i += 2) x[i] *= 3e-38f;
  Fixture fixture(Variant(), 1, weight, LinearLayout::kStacked, kRows);
  const std::vector<float> all = fixture.Run({}, x, {});
  for (int32_t row = 0; row < kRows; ++row) {
    const Call call = {.prologue = Prologue::kNone, .epilogue = Epilogue::kNone, .x_rows = {row}};
    const std::vector<float> alone = fixture.Run(call, x, {});
    ASSERT_EQ(std::memcmp(alone.data(), all.data() + row * kOutFeatures, alone.size() * sizeof(float)), 0)
        << row;
  }
}

TEST_P(LinearTest, ARowOfNansLeavesItsNeighboursAlone) {
  constexpr int64_t kInFeatures = 300, kRows = 33;
  const FileMatrix weight(Dtype(), 100, kInFeatures, 13);
  const std::vector<float> norm_weight = RandomFloats(kInFeatures, 14);
  Fixture fixture(Variant(), 2, weight, LinearLayout::kStacked, kRows);
  const Call call = {.prologue = Prologue::kRmsNorm, .epilogue = Epilogue::kNone, .x_rows = {}};
  std::vector<float> x = RandomFloats(kRows * kInFeatures, 15);
  std::vector<float> clean = fixture.Run(call, x, norm_weight);
  x[7 * kInFeatures + 100] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> poisoned = fixture.Run(call, x, norm_weight);
  for (int64_t c = 0; c < 100; ++c) {
    EXPECT_TRUE(std::isnan(poisoned[static_cast<size_t>(7 * 100 + c)]));
    poisoned[static_cast<size_t>(7 * 100 + c)] = clean[static_cast<size_t>(7 * 100 + c)];
  }
  EXPECT_EQ(std::memcmp(poisoned.data(), clean.data(), clean.size() * sizeof(float)), 0);
}

// K = 1 and weights of one: gate = up = x, so out is x silu(x). x is exact in bf16.
TEST_P(LinearTest, SiluIsAccurateAndTheSameInEveryLane) {
  constexpr int64_t kOutputs = 37;
  FileMatrix weight(Dtype(), 2 * kOutputs, 1, 16);
  for (int64_t row = 0; row < 2 * kOutputs; ++row) weight.Put(row, 0, 1.0f);
  std::vector<float> x;
  for (float value = -100.0f; value <= 100.0f; value += 0.37f) x.push_back(RoundToBf16(value));
  x.push_back(0.0f);
  Fixture fixture(Variant(), 1, weight, LinearLayout::kGateUp, static_cast<int32_t>(x.size()));
  const std::vector<float> out =
      fixture.Run({.prologue = Prologue::kNone, .epilogue = Epilogue::kSwiGlu, .x_rows = {}}, x, {});
  for (size_t row = 0; row < x.size(); ++row) {
    const double value = x[row];
    const double want = reference::Silu(value) * value;
    // e^-x to 4 roundoffs, the sum, the quotient and the product one each. Below -87.3 e^-x is taken as
    // infinite.
    ASSERT_NEAR(out[row * kOutputs], want, 8.0 * kRoundoffF32 * std::abs(want) + 1e-33) << "x is " << value;
    for (size_t c = 1; c < kOutputs; ++c) {
      ASSERT_EQ(std::memcmp(&out[row * kOutputs + c], &out[row * kOutputs], sizeof(float)), 0);
    }
  }
}

TEST_P(LinearTest, UnpackedRowsAreTheSourceRows) {
  for (const LinearLayout layout : {LinearLayout::kStacked, LinearLayout::kGateUp}) {
    const FileMatrix weight(Dtype(), 74, 35, 17);
    Fixture fixture(Variant(), 2, weight, layout, 1);
    for (int64_t row = 0; row < weight.rows(); ++row) {
      std::vector<float> got(35);
      UnpackRow(fixture.packed(), row, got.data());
      for (int64_t k = 0; k < 35; ++k) {
        ASSERT_EQ(got[static_cast<size_t>(k)], static_cast<float>(weight.values().At(row, k)))
            << row << ", " << k;
      }
    }
  }
}

TEST_P(LinearTest, PackedBytesIsWhatPackingTakesAndNeverWidens) {
  const BackendPtr backend = std::move(MakeCpuBackend({.threads = 1, .variant = Variant()})).value();
  for (const int64_t rows : {2, 62, 64, 66, 4096}) {
    for (const LinearLayout layout : {LinearLayout::kStacked, LinearLayout::kGateUp}) {
      const FileMatrix weight(Dtype(), rows, 75, 18);
      WeightRows parts[] = {weight.Rows(0, rows / 2), weight.Rows(rows / 2, rows)};
      LinearSource source = {.parts = parts, .part_count = 2, .in_features = 75, .layout = layout};
      WeightHandle handle;
      ASSERT_EQ(backend->PackLinear(source, &handle), OpCode::kOk);
      const auto& packed = *static_cast<const PackedWeight*>(handle.impl);
      for (WeightRows& part : parts) part.data = nullptr;  // not read
      EXPECT_EQ(backend->PackedBytes(source), packed.bytes);
      // No more than the file's bytes with rows filled up to a panel and K to a pair.
      const int64_t filled = (rows + packed.panel_width - 1) / packed.panel_width * packed.panel_width * 76;
      EXPECT_LE(packed.bytes, Format(Dtype()).Bytes(filled));
      backend->FreeWeight(handle);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, LinearTest,
                         testing::Combine(testing::ValuesIn(AllCpuVariantNames()),
                                          testing::Values(DType::kF32, DType::kBf16, DType::kF16)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + DTypeName(std::get<1>(info.param));
                         });

// ---- errors

std::string PackError(const LinearSource& source) {
  const BackendPtr backend = std::move(MakeCpuBackend({.threads = 1, .variant = "portable"})).value();
  WeightHandle handle;
  EXPECT_EQ(backend->PackLinear(source, &handle), OpCode::kUnsupported);
  EXPECT_EQ(handle.impl, nullptr);
  return backend->last_error();
}

TEST(LinearErrorTest, UnsupportedSourcesAreRefusedWithTheReason) {
  const FileMatrix bf16(DType::kBf16, 8, 16, 1);
  const WeightRows uneven[] = {bf16.Rows(0, 3), bf16.Rows(3, 8)};
  EXPECT_EQ(PackError({.parts = uneven, .part_count = 2, .in_features = 16, .layout = LinearLayout::kGateUp}),
            "a gate-up weight needs two parts of equal rows");
  EXPECT_EQ(PackError({.parts = uneven, .part_count = 2, .in_features = 0}),
            "in_features is 0, supported are 1 to 1073741824");
  EXPECT_EQ(PackError({.parts = uneven, .part_count = 0, .in_features = 16}),
            "a linear weight without parts");
  const WeightRows empty[] = {bf16.Rows(3, 3)};
  EXPECT_EQ(PackError({.parts = empty, .part_count = 1, .in_features = 16}),
            "part 0 has 0 rows, supported are 1 to 1073741824");
  const WeightRows narrow[] = {{.data = nullptr, .format = DType::kBf16, .rows = 4, .row_stride = 15}};
  EXPECT_EQ(PackError({.parts = narrow, .part_count = 1, .in_features = 16}),
            "part 0 has rows of 16 elements every 15");
  const Format four_bits(DType::kBf16, /*log2_of_block=*/5, /*bytes=*/16, /*bytes_apart=*/2);
  const WeightRows blocks[] = {{.data = nullptr, .format = four_bits, .rows = 4, .row_stride = 32}};
  EXPECT_EQ(PackError({.parts = blocks, .part_count = 1, .in_features = 32}),
            "part 0 is bf16 in blocks of 32, supported are the types by themselves, and those in groups of "
            "32 to 256");
  const WeightRows ragged[] = {{.data = nullptr, .format = DType::kQ4K, .rows = 4, .row_stride = 704}};
  EXPECT_EQ(PackError({.parts = ragged, .part_count = 1, .in_features = 704}),
            "part 0 is q4_k in rows of 704, which are no whole blocks of 256");
  const WeightRows many[] = {bf16.Rows(0, 1), bf16.Rows(1, 2), bf16.Rows(2, 3), bf16.Rows(3, 4),
                             bf16.Rows(4, 5)};
  EXPECT_EQ(PackError({.parts = many, .part_count = 5, .in_features = 16}),
            "5 parts; the CPU backend takes up to 4");
}

TEST(LinearErrorTest, AWeightBeyondMemoryIsOutOfMemory) {
  const BackendPtr backend = std::move(MakeCpuBackend({.threads = 1, .variant = "portable"})).value();
  const WeightRows huge[] = {
      {.data = nullptr, .format = DType::kF32, .rows = int64_t{1} << 30, .row_stride = int64_t{1} << 30}};
  WeightHandle handle;
  EXPECT_EQ(backend->PackLinear({.parts = huge, .part_count = 1, .in_features = int64_t{1} << 30}, &handle),
            OpCode::kOutOfMemory);
  EXPECT_STREQ(backend->last_error(), "no memory for a packed weight of 4611686018427387904 bytes");
}

TEST(CpuBackendTest, AnUnknownVariantIsRefusedWithTheKnownOnes) {
  const auto backend = MakeCpuBackend({.threads = 1, .variant = "sse9"});
  ASSERT_FALSE(backend.ok());
  EXPECT_EQ(backend.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(backend.status().message().find("'sse9'"), std::string::npos);
  EXPECT_NE(backend.status().message().find("portable"), std::string::npos);
}

TEST(CpuBackendTest, TheBestVariantIsPickedUnlessOneIsNamed) {
  const std::vector<std::string> variants = CpuVariants();
  ASSERT_FALSE(variants.empty());
  EXPECT_EQ(variants.back(), "portable");
  EXPECT_EQ(std::move(MakeCpuBackend({})).value()->info().variant, variants.front());
  for (const std::string& name : variants) {
    EXPECT_EQ(std::move(MakeCpuBackend({.threads = 3, .variant = name})).value()->info().variant, name);
  }
}

TEST(CpuBackendTest, MemoryIsZeroedAndAligned) {
  const BackendPtr backend = std::move(MakeCpuBackend({.threads = 1, .variant = ""})).value();
  for (const int64_t bytes : {0, 1, 63, 64, 65, 4096, (1 << 20) - 64, 1 << 20, (4 << 20) + 1}) {
    auto* memory = static_cast<unsigned char*>(backend->Allocate(bytes));
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
    EXPECT_TRUE(std::all_of(memory, memory + bytes, [](unsigned char byte) { return byte == 0; }));
    std::memset(memory, 0xab, static_cast<size_t>(bytes));
    backend->Free(memory);
  }
}

}  // namespace
}  // namespace tramontane
