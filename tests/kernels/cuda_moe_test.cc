// Moe of the CUDA backend against its definition, in each of its forms: a block for a pair (up to 4 rows),
// for an expert (up to 16), tiles from a list (more rows, or odd widths); on the emulator, in each order of
// its threads, and on a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/core/check.h"
#include "kernels/cuda/moe.h"
#include "tests/kernels/moe_case.h"
#include "tests/kernels/moe_checks.h"
#include "tests/support/cuda_device.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

using reference::Matrix;

constexpr double kRoundoffF32 = 0x1p-24;
constexpr double kRoundoffBf16 = 0x1p-9;

std::vector<float> RunOnDevice(MoeCase& of, const std::vector<float>& x, Epilogue epilogue,
                               bool in_place = false) {
  const BackendPtr backend = MakeCudaTestBackend();
  const auto rows = static_cast<int32_t>(x.size()) / of.shape().hidden;
  TM_CHECK(backend->Reserve(of.Maxima(rows)) == OpCode::kOk, "%s", backend->last_error());
  PackedMoe packed(of, of.layer(), *backend);
  return packed.Run(x, epilogue, in_place);
}

// Roundings to bf16, a unit of 2^-9 each: the norm, gate, up, their product, and the whole at its end. Sums
// in f32 err by K roundoffs of their terms' sizes; a share by twice the error of a score, and 2^-20 for ex2.
void ExpectMatches(MoeCase& of, const std::vector<float>& x, const std::vector<float>& got, bool adds) {
  const int32_t hidden = of.shape().hidden;
  Matrix rows(static_cast<int64_t>(x.size()) / hidden, hidden);
  std::copy(x.begin(), x.end(), rows.data.begin());
  const Matrix want = reference::Moe(of.layer(), rows);
  const Matrix magnitude = reference::MoeMagnitude(of.layer(), rows);
  const Matrix scores = reference::Magnitude(
      reference::RmsNorm(rows, of.layer().norm, of.layer().norm_epsilon), of.layer().router);
  const double k = (1.5 * hidden + of.shape().intermediate + 32) * kRoundoffF32;
  const double score_error = k * *std::max_element(scores.data.begin(), scores.data.end());
  const double relative = 4.1 * kRoundoffBf16 + k + 2 * score_error + 0x1p-20;
  ASSERT_EQ(got.size(), want.data.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double value = want.data[i] + (adds ? rows.data[i] : 0.0);
    const double error = relative * magnitude.data[i];
    ASSERT_NEAR(got[i], value, error + 1.01 * kRoundoffBf16 * (std::abs(value) + error) + 1e-30)
        << "row " << static_cast<int64_t>(i) / hidden << " of " << rows.rows;
  }
}

struct Shape {
  const char* name;
  MoeShape shape;
  std::vector<int32_t> rows;
};
std::ostream& operator<<(std::ostream& out, const Shape& s) { return out << s.name; }

class CudaMoe : public testing::TestWithParam<Shape> {};

// Widths that are multiples of 32 have every form, others tiles alone; hidden 152 and 136 end within a tile
// of outputs, intermediate 72 within a block of k.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaMoe,
    testing::Values(
        Shape{"TwoOfEight", {8, 2, 64, 96, DType::kBf16}, {1, 2, 4, 5, 9, 16, 17, 40}},
        Shape{"ThreeOfFive", {5, 3, 160, 32, DType::kF16}, {1, 3, 4, 8, 16, 33}},
        Shape{"OneOfTwo", {2, 1, 32, 64, DType::kF32}, {2, 7, 150}},
        Shape{"AllOfThree", {3, 3, 352, 32, DType::kBf16}, {4, 12, 70}},
        Shape{"OddWidths", {4, 2, 152, 72, DType::kBf16}, {1, 6, 80}},
        Shape{"InBlocksOf32", {4, 2, 96, 64, DType::kQ4_0}, {1, 6, 40}},
        Shape{"InBlocksOf256", {3, 2, 256, 256, DType::kQ6K}, {3, 9, 20}},
        Shape{"InGroups", {4, 2, 256, 128, DType::kInt4}, {1, 6, 40}},
        Shape{"InOrdersOfTheirInputs", {4, 2, 256, 128, DType::kInt4, MoeColumns::kByInputs}, {1, 6, 40}},
        Shape{"InOrdersOfTheirOwn", {3, 2, 128, 384, DType::kInt8, MoeColumns::kByMatrix}, {2, 9, 20}},
        Shape{"PlainInOrdersOfTheirOwn", {3, 2, 64, 96, DType::kBf16, MoeColumns::kByMatrix}, {1, 7, 20}},
        Shape{"Many", {70, 8, 64, 32, DType::kBf16}, {1, 11, 18}},
        Shape{"Alone", {1, 1, 136, 40, DType::kBf16}, {1, 65}}),
    [](const auto& info) { return info.param.name; });

// All of them, or where tests are scaled down three, the first and the last among them.
std::vector<int32_t> SomeOf(const std::vector<int32_t>& rows) {
  const auto all = static_cast<int64_t>(rows.size());
  const int64_t count = std::min(all, ScaledCount(all, 3));
  std::vector<int32_t> some;
  for (int64_t i = 0; i < count; ++i) {
    some.push_back(rows[static_cast<size_t>(count == 1 ? 0 : i * (all - 1) / (count - 1))]);
  }
  return some;
}

TEST_P(CudaMoe, AgreesWithItsDefinition) {
  MoeCase of(GetParam().shape, 7);
  // Weights are rounded to bf16 once when they are packed.
  for (reference::MoeExpert& expert : of.layer().experts) {
    for (Matrix* matrix : {&expert.gate, &expert.up, &expert.down}) {
      for (double& value : matrix->data) value = Bf16ToFloat(FloatToBf16(static_cast<float>(value)));
    }
  }
  for (const int32_t rows : SomeOf(GetParam().rows)) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    const std::vector<float> x = of.RandomRows(rows, static_cast<uint32_t>(rows));
    std::vector<std::vector<float>> by_order;
    for (const ThreadOrder order : ThreadOrders()) {
      UseThreadOrder(order);
      by_order.push_back(RunOnDevice(of, x, Epilogue::kAddResidual, /*in_place=*/true));
      EXPECT_EQ(by_order.back(), by_order.front());
    }
    UseThreadOrder(ThreadOrder::kForward);
    ExpectMatches(of, x, by_order.front(), true);
    ExpectMatches(of, x, RunOnDevice(of, x, Epilogue::kNone), false);
  }
}

std::vector<float> RunPlain(MoeCase& of, const std::vector<float>& x) {
  return RunOnDevice(of, x, Epilogue::kNone);
}

TEST(CudaMoeRouter, OfEqualScoresTheLowerExpertIsChosen) { ExpectTheLowerOfEqualExperts(RunPlain); }

TEST(CudaMoeRouter, IsF32) { ExpectAnF32Router(RunPlain, /*f32_rows=*/false); }

TEST(CudaMoeRouter, ARowOfNansLeavesItsNeighboursAlone) {
  for (const int32_t rows : {3, 9, 20}) ExpectNansToStayInTheirRow(RunPlain, rows);
}

// The choice stays on the device: a recorded step over other rows gives what the step itself gives for them.
TEST(CudaMoeRecording, ReplayedOverOtherRowsIsTheStepItself) {
  for (const int32_t rows : {1, 4, 12, 40}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    MoeCase of({8, 2, 64, 96, DType::kBf16}, 6);
    const std::vector<float> first = of.RandomRows(rows, 1), second = of.RandomRows(rows, 2);
    const BackendPtr backend = MakeCudaTestBackend();
    ASSERT_EQ(backend->Reserve(of.Maxima(rows)), OpCode::kOk) << backend->last_error();
    PackedMoe packed(of, of.layer(), *backend);
    const Tensor x = packed.Upload(first), other = packed.Upload(second), out = packed.Upload(first);
    ASSERT_EQ(packed.Queue(x, out, rows, Epilogue::kNone), OpCode::kOk);
    const std::vector<float> of_first = packed.Download(out);
    ASSERT_EQ(backend->BeginRecording(), OpCode::kOk);
    ASSERT_EQ(packed.Queue(x, out, rows, Epilogue::kNone), OpCode::kOk);
    RecordingHandle recording;
    ASSERT_EQ(backend->EndRecording(&recording), OpCode::kOk);
    const std::vector<float> bits = packed.Download(other);
    std::vector<uint16_t> halves;
    for (const float value : bits) halves.push_back(FloatToBf16(value));
    ASSERT_EQ(backend->Upload(x.data, halves.data(), static_cast<int64_t>(halves.size() * 2)), OpCode::kOk);
    ASSERT_EQ(backend->Replay(recording), OpCode::kOk);
    const std::vector<float> replayed = packed.Download(out);
    EXPECT_NE(replayed, of_first);
    ASSERT_EQ(packed.Queue(other, out, rows, Epilogue::kNone), OpCode::kOk);
    EXPECT_EQ(replayed, packed.Download(out));
    backend->FreeRecording(recording);
  }
}

// Padding asks for no expert, and its rows stay as they were. With fewer rows another kernel may run, whose
// sums are in another order.
TEST(CudaMoePadding, RowsOfPaddingAreLeftAlone) {
  MoeCase of({8, 2, 64, 96, DType::kBf16}, 8);
  for (const int32_t rows : {3, 9, 40}) {
    for (const int32_t live : {0, 1, rows - 1}) {
      std::vector<float> x = of.RandomRows(rows, 2);
      std::fill(x.begin() + live * 64, x.end(), std::numeric_limits<float>::quiet_NaN());
      const BackendPtr backend = MakeCudaTestBackend();
      ASSERT_EQ(backend->Reserve(of.Maxima(rows)), OpCode::kOk);
      PackedMoe packed(of, of.layer(), *backend);
      const std::vector<float> got = packed.RunPadded(x, live);
      std::vector<float> want = x;
      if (live > 0) {
        const std::vector<float> few(x.begin(), x.begin() + live * 64);
        std::copy_n(packed.Run(few, Epilogue::kAddResidual).begin(), live * 64, want.begin());
      }
      for (size_t i = 0; i < got.size(); ++i) {
        if (static_cast<int32_t>(i) < live * 64) {
          ASSERT_NEAR(got[i], want[i], 2 * kRoundoffBf16 * std::abs(want[i]) + 0x1p-7);
        } else {
          ASSERT_TRUE(std::isnan(got[i]));
        }
      }
    }
  }
}

TEST(CudaMoeRefusal, NamesTheWidthBeyondWhichColumnsMustBeInOrder) {
  const BackendPtr backend = MakeCudaTestBackend();
  std::vector<int32_t> order(size_t{cuda::kMaxMoeOrderWidth} + 32);
  std::iota(order.rbegin(), order.rend(), 0);
  const auto columns = static_cast<int64_t>(order.size());
  const WeightRows part = {nullptr, Format::InGroups(DType::kInt4, 5, DType::kF16), 16, columns,
                           order.data()};
  WeightHandle weight;
  EXPECT_EQ(
      backend->PackLinear(
          {.parts = &part, .part_count = 1, .in_features = columns, .use = WeightUse::kExpert}, &weight),
      OpCode::kUnsupported);
  EXPECT_STREQ(backend->last_error(),
               "an expert's 49184 columns in an order of their own; the CUDA backend takes up to 49152");
}

TEST(CudaMoeReserve, RowsTooWideForTheRouterAreRefusedWithTheLimit) {
  const BackendPtr backend = MakeCudaTestBackend();
  StepMaxima maxima = MoeCase({8, 2, 64, 96, DType::kBf16}, 1).Maxima(1);
  maxima.hidden = cuda::kMaxMoeHidden + 8;
  EXPECT_EQ(backend->Reserve(maxima), OpCode::kUnsupported);
  EXPECT_NE(std::string(backend->last_error()).find("16392; the CUDA backend takes up to 16384"),
            std::string::npos)
      << backend->last_error();
}

}  // namespace
}  // namespace tramontane
