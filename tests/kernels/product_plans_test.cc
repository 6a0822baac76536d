// Which kernel multiplies how many rows: families of row counts, and choices by time, over the emulator's
// clock.
#include "kernels/cuda/product_plans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "kernels/cuda/emulator/emulated_runtime.h"

namespace tramontane::cuda {
namespace {

using emulator::EmulatedRuntime;

TEST(ProductFamiliesTest, EveryRowCountIsOfOneFamilyWhichIsNarrowerTheFewerTheRows) {
  int32_t next = 1;
  for (size_t family = 0; next <= 4096; ++family) {
    const MatmulShape shape = FamilyShape(family, 64, 32, MatmulOut::kBf16);
    ASSERT_EQ(shape.min_rows, next);
    for (int32_t rows = shape.min_rows; rows <= shape.max_rows; ++rows) ASSERT_EQ(FamilyOf(rows), family);
    const int32_t width = shape.max_rows - shape.min_rows + 1;
    EXPECT_EQ(width, next == 1 ? 16 : next <= 128 ? 8 : next <= 1024 ? 64 : 256) << next;
    next = shape.max_rows + 1;
  }
}

// Two weights [32, 64] and one [16, 64] for products of up to 40 rows.
struct Planned {
  explicit Planned(const std::string& tuning = "") : weight(64 * 32), x(64 * 64), out(64 * 64) {
    EXPECT_TRUE(plans.UseTuning(tuning));
    large = plans.Add(64, 32, {MatmulOut::kBf16, MatmulOut::kF32}, weight.data());
    plans.Add(64, 32, {MatmulOut::kBf16}, weight.data());
    small = plans.Add(64, 16, {MatmulOut::kBf16Add}, weight.data());
    plans.Reserve(40);
  }
  // Candidates 0, 1 and 2 take so long.
  int Tune(std::array<int64_t, 3> ns, int64_t out_bytes = 64 * 64 * 4) {
    runtime.SetCandidateTimes(ns);
    return plans.Tune({.x = x.data(), .x_bytes = 64 * 64 * 4, .out = out.data(), .out_bytes = out_bytes});
  }
  int CandidateFor(const ProductPlans::Table* table, MatmulOut kind, int32_t rows) const {
    return runtime.CandidateOf(ProductPlans::PlanOf(*table, kind, rows));
  }

  EmulatedRuntime runtime;
  ProductPlans plans{runtime};
  std::vector<float> weight, x, out;
  const ProductPlans::Table* large = nullptr;
  const ProductPlans::Table* small = nullptr;
};

TEST(ProductPlansTest, WithoutTuningTheFirstCandidateIsTakenAndNothingIsTimed) {
  const Planned planned;
  for (const int32_t rows : {17, 24, 25, 40}) {
    EXPECT_EQ(planned.CandidateFor(planned.large, MatmulOut::kBf16, rows), 0);
  }
  EXPECT_EQ(planned.runtime.matmuls(), 0);
  EXPECT_EQ(planned.plans.Tuning(), "");
  EXPECT_EQ(ProductPlans::PlanOf(*planned.large, MatmulOut::kBf16, 41), ProductPlans::kNotPlanned);
  EXPECT_EQ(ProductPlans::PlanOf(*planned.large, MatmulOut::kBf16Add, 20), ProductPlans::kNotPlanned);
}

TEST(ProductPlansTest, TheFastestCandidateOfEachFamilyIsTakenAndKnownToTheNextProcess) {
  Planned timed;
  ASSERT_EQ(timed.Tune({30, 10, 20}), 0);
  const int64_t families = 3;  // 17 to 24, 25 to 32, 33 to 40
  const std::string tuning = timed.plans.Tuning();
  EXPECT_EQ(std::count(tuning.begin(), tuning.end(), '\n'), 3 * families) << tuning;
  EXPECT_NE(tuning.find("emulated 64 32 bf16 17 24 b\n"), std::string::npos) << tuning;
  EXPECT_NE(tuning.find("emulated 64 16 bf16+ 33 40 b\n"), std::string::npos) << tuning;

  Planned next(tuning);
  EXPECT_EQ(next.CandidateFor(next.large, MatmulOut::kF32, 40), 1);
  EXPECT_EQ(next.CandidateFor(next.small, MatmulOut::kBf16Add, 17), 1);
  ASSERT_EQ(next.Tune({1, 10, 10}), 0);
  EXPECT_EQ(next.runtime.matmuls(), 0) << "what is known is timed again";
  EXPECT_EQ(next.plans.Tuning(), tuning);
}

// Of the same shape, with plans and choices of their own.
TEST(ProductPlansTest, WeightsInFp8StandBesideThoseInBf16) {
  EmulatedRuntime runtime;
  ProductPlans plans(runtime);
  ASSERT_TRUE(plans.UseTuning("emulated 64 32 fp8>bf16 17 24 c\n"));
  alignas(16) static std::array<float, 64 * 64> x{}, out{}, weight{}, scales{};
  const ProductPlans::Table* of_bf16 = plans.Add(64, 32, {MatmulOut::kBf16}, weight.data());
  const ProductPlans::Table* of_fp8 = plans.Add(64, 32, {MatmulOut::kBf16}, weight.data(), scales.data());
  plans.Reserve(32);
  const auto candidate = [&](const ProductPlans::Table* table, int32_t rows) {
    return runtime.CandidateOf(ProductPlans::PlanOf(*table, MatmulOut::kBf16, rows));
  };
  EXPECT_EQ(candidate(of_bf16, 20), 0);
  EXPECT_EQ(candidate(of_fp8, 20), 2);
  runtime.SetCandidateTimes({5, 1, 9});
  ASSERT_EQ(plans.Tune({.x = x.data(),
                        .x_bytes = sizeof(x),
                        .out = out.data(),
                        .out_bytes = sizeof(out),
                        .x_scales = scales.data()}),
            0);
  EXPECT_EQ(candidate(of_bf16, 20), 1);
  EXPECT_EQ(candidate(of_fp8, 20), 2) << "it was known";
  EXPECT_EQ(candidate(of_fp8, 25), 1);
  EXPECT_GT(runtime.fp8_matmuls(), 0);
  plans.Remove(64, 32, weight.data(), scales.data());
  const int64_t timed = runtime.fp8_matmuls();
  plans.Reserve(40);
  ASSERT_EQ(plans.Tune({.x = x.data(), .x_bytes = sizeof(x), .out = out.data(), .out_bytes = sizeof(out)}),
            0);
  EXPECT_EQ(runtime.fp8_matmuls(), timed) << "there is no such weight any more";
}

TEST(ProductPlansTest, OnlyWhatIsNotKnownIsTimed) {
  Planned planned("emulated 64 32 bf16 17 24 c\n");
  ASSERT_EQ(planned.Tune({5, 1, 9}), 0);
  EXPECT_EQ(planned.CandidateFor(planned.large, MatmulOut::kBf16, 20), 2);
  EXPECT_EQ(planned.CandidateFor(planned.large, MatmulOut::kBf16, 30), 1);
}

TEST(ProductPlansTest, ChoicesOfOtherDevicesAreKeptAndNotTaken) {
  const std::string others = "A_card,1,cublasLt-1 64 32 bf16 17 24 c\n";
  const Planned planned(others);
  EXPECT_EQ(planned.CandidateFor(planned.large, MatmulOut::kBf16, 20), 0);
  EXPECT_EQ(planned.plans.Tuning(), others);
}

TEST(ProductPlansTest, AChoiceThatTheLibraryDoesNotKnowIsForgottenAndTimedAgain) {
  Planned planned("emulated 64 32 bf16 17 24 zz\n");
  EXPECT_EQ(planned.CandidateFor(planned.large, MatmulOut::kBf16, 20), 0);
  ASSERT_EQ(planned.Tune({5, 1, 9}), 0);
  EXPECT_EQ(planned.CandidateFor(planned.large, MatmulOut::kBf16, 20), 1);
}

TEST(ProductPlansTest, FamiliesThatDoNotFitTheScratchKeepTheFirstCandidate) {
  Planned planned;
  ASSERT_EQ(planned.Tune({5, 1, 9}, /*out_bytes=*/32 * 32 * 2), 0);
  EXPECT_EQ(planned.CandidateFor(planned.large, MatmulOut::kBf16, 32), 1);
  EXPECT_EQ(planned.CandidateFor(planned.large, MatmulOut::kBf16, 33), 0);
  EXPECT_EQ(planned.CandidateFor(planned.large, MatmulOut::kF32, 24), 0);
}

TEST(ProductPlansTest, TextThatIsNoTuningIsRefusedAndNothingOfItIsTaken) {
  for (const char* text : {"x", "emulated 64 32 bf16 17 24 b\nx\n", "emulated 64 32 bf16 17 24 \n", "\n",
                           "emulated 64 32 bf16 17 24 b c\n", " 64 32 bf16 17 24 b\n"}) {
    EmulatedRuntime runtime;
    ProductPlans plans(runtime);
    EXPECT_FALSE(plans.UseTuning(text)) << text;
    EXPECT_EQ(plans.Tuning(), "");
  }
}

}  // namespace
}  // namespace tramontane::cuda
