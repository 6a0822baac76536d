// Moe of the CPU backend: every variant against the definition in double precision, and bit for bit against
// itself over rows, threads and places in the batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "tests/kernels/moe_case.h"
#include "tests/kernels/moe_checks.h"
#include "tests/support/cpu_variants.h"
#include "tests/support/test_scale.h"

namespace tramontane {
namespace {

using reference::Matrix;

constexpr double kRoundoffF32 = 0x1p-24;
constexpr double kRoundoffBf16 = 0x1p-8;

Matrix ToMatrix(const std::vector<float>& values, int64_t columns) {
  Matrix matrix(static_cast<int64_t>(values.size()) / columns, columns);
  std::copy(values.begin(), values.end(), matrix.data.begin());
  return matrix;
}

class MoeTest : public CpuVariantTest {
 protected:
  std::vector<float> Run(MoeCase& of, const std::vector<float>& x, Epilogue epilogue, int32_t threads = 2,
                         bool in_place = false) {
    const auto rows = static_cast<int32_t>(x.size()) / of.shape().hidden;
    const BackendPtr backend = MakeBackend(GetParam(), threads, of.Maxima(rows));
    PackedMoe packed(of, of.layer(), *backend);
    return packed.Run(x, epilogue, in_place);
  }
  RunMoe Plain() {
    return [this](MoeCase& of, const std::vector<float>& x) { return Run(of, x, Epilogue::kNone); };
  }
};

// Sums of K products in f32 err by K roundoffs of their terms' sizes, a norm by K / 2 + 6 more
// (linear_test.cc); an input rounded to bf16 by one roundoff of bf16, in gate-up and in down. Scores err as
// sums of f32 in every variant, and a share by twice the error of a score.
void ExpectMatches(MoeCase& of, const std::vector<float>& x, const std::vector<float>& got, bool adds,
                   bool rounds_inputs) {
  const Matrix rows = ToMatrix(x, of.shape().hidden);
  const Matrix want = reference::Moe(of.layer(), rows);
  const Matrix magnitude = reference::MoeMagnitude(of.layer(), rows);
  const Matrix scores = reference::Magnitude(
      reference::RmsNorm(rows, of.layer().norm, of.layer().norm_epsilon), of.layer().router);
  const double k = 1.5 * of.shape().hidden + of.shape().intermediate + 32;
  const double score_error = k * kRoundoffF32 * *std::max_element(scores.data.begin(), scores.data.end());
  const double relative = k * kRoundoffF32 + (rounds_inputs ? 2.02 * kRoundoffBf16 : 0.0) + 2 * score_error;
  ASSERT_EQ(got.size(), want.data.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double value = want.data[i] + (adds ? rows.data[i] : 0.0);
    ASSERT_NEAR(got[i], value, relative * magnitude.data[i] + 2 * kRoundoffF32 * std::abs(value))
        << "row " << static_cast<int64_t>(i) / of.shape().hidden;
  }
}

TEST_P(MoeTest, MatchesTheDefinition) {
  const MoeShape shapes[] = {
      {.experts = 8, .experts_per_token = 2, .hidden = 64, .intermediate = 48, .dtype = DType::kBf16},
      {.experts = 5, .experts_per_token = 3, .hidden = 37, .intermediate = 21, .dtype = DType::kF32},
      {.experts = 4, .experts_per_token = 4, .hidden = 300, .intermediate = 40, .dtype = DType::kF16},
      {.experts = 256, .experts_per_token = 7, .hidden = 24, .intermediate = 8, .dtype = DType::kF32},
      {.experts = 1, .experts_per_token = 1, .hidden = 48, .intermediate = 272, .dtype = DType::kBf16},
      {.experts = 6,
       .experts_per_token = 2,
       .hidden = 40,
       .intermediate = 72,
       .dtype = DType::kF32,
       .columns = MoeColumns::kByMatrix},
  };
  for (const MoeShape& shape : shapes) {
    MoeCase of(shape, 7);
    const bool rounds = RoundsInputs(GetParam()) && shape.dtype == DType::kBf16;
    for (const int32_t rows : {1, 2, 5, 70}) {
      SCOPED_TRACE(std::to_string(shape.experts) + " experts, " + std::to_string(rows) + " rows");
      const std::vector<float> x = of.RandomRows(rows, static_cast<uint32_t>(rows));
      ExpectMatches(of, x, Run(of, x, Epilogue::kNone), false, rounds);
      ExpectMatches(of, x, Run(of, x, Epilogue::kAddResidual, 2, /*in_place=*/true), true, rounds);
    }
  }
}

TEST_P(MoeTest, NoRowsIsNoWork) {
  MoeCase of({}, 1);
  const BackendPtr backend = MakeBackend(GetParam(), 1, of.Maxima(1));
  PackedMoe packed(of, of.layer(), *backend);
  const std::vector<float> x = of.RandomRows(1, 1);
  const Tensor out = packed.Upload(x);
  EXPECT_EQ(packed.Queue(out, out, 0, Epilogue::kAddResidual), OpCode::kOk);
  EXPECT_EQ(packed.Download(out), x);
}

// A row's bits are its own: any number of rows beside it, in any order, on any number of threads.
TEST_P(MoeTest, ARowHasTheSameBitsInAnyCompanyAndOnAnyThreads) {
  for (const DType dtype : {DType::kBf16, DType::kF32}) {
    MoeCase of({.experts = 6, .experts_per_token = 2, .hidden = 80, .intermediate = 70, .dtype = dtype}, 3);
    const int32_t hidden = of.shape().hidden, rows = 90;
    const std::vector<float> x = of.RandomRows(rows, 5);
    const std::vector<float> all = Run(of, x, Epilogue::kAddResidual, 1);
    std::mt19937 random(11);
    for (int trial = 0; trial < ScaledCount(12); ++trial) {
      const auto count = static_cast<int32_t>(1 + random() % (trial % 2 == 0 ? 4 : rows));
      std::vector<int32_t> order(static_cast<size_t>(rows));
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      std::vector<float> some;
      for (int32_t i = 0; i < count; ++i) {
        const auto begin = x.begin() + order[static_cast<size_t>(i)] * hidden;
        some.insert(some.end(), begin, begin + hidden);
      }
      const std::vector<float> got = Run(of, some, Epilogue::kAddResidual, 1 + trial % 3);
      for (int32_t i = 0; i < count; ++i) {
        ASSERT_EQ(std::memcmp(got.data() + i * hidden, all.data() + order[static_cast<size_t>(i)] * hidden,
                              static_cast<size_t>(hidden) * sizeof(float)),
                  0)
            << "row " << order[static_cast<size_t>(i)] << " among " << count;
      }
    }
  }
}

TEST_P(MoeTest, OfEqualScoresTheLowerExpertIsChosen) { ExpectTheLowerOfEqualExperts(Plain()); }

TEST_P(MoeTest, TheRouterIsF32) { ExpectAnF32Router(Plain(), /*f32_rows=*/true); }

// Padding asks for no expert, and its rows stay as they were.
TEST_P(MoeTest, RowsOfPaddingAreLeftAlone) {
  MoeCase of({}, 8);
  for (const int32_t rows : {3, 9, 40}) {
    for (const int32_t live : {0, 1, rows - 1}) {
      std::vector<float> x = of.RandomRows(rows, 2);
      std::fill(x.begin() + live * 64, x.end(), std::numeric_limits<float>::quiet_NaN());
      const BackendPtr backend = MakeBackend(GetParam(), 2, of.Maxima(rows));
      PackedMoe packed(of, of.layer(), *backend);
      const std::vector<float> got = packed.RunPadded(x, live);
      std::vector<float> want = x;
      if (live > 0) {
        const std::vector<float> few(x.begin(), x.begin() + live * 64);
        std::copy_n(packed.Run(few, Epilogue::kAddResidual).begin(), live * 64, want.begin());
      }
      for (size_t i = 0; i < got.size(); ++i) {
        if (static_cast<int32_t>(i) < live * 64) {
          ASSERT_EQ(got[i], want[i]);
        } else {
          ASSERT_TRUE(std::isnan(got[i]));
        }
      }
    }
  }
}

TEST_P(MoeTest, ARowOfNansLeavesItsNeighboursAlone) {
  for (const int32_t rows : {3, 9, 20}) ExpectNansToStayInTheirRow(Plain(), rows);
}

TM_INSTANTIATE_FOR_CPU_VARIANTS(MoeTest);

}  // namespace
}  // namespace tramontane
