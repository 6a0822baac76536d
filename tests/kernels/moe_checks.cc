#include "tests/kernels/moe_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tramontane {
namespace {

constexpr int32_t kHidden = 64;

MoeShape Shape(int32_t experts, int32_t experts_per_token) {
  return {experts, experts_per_token, kHidden, 32, DType::kBf16};
}

}  // namespace

void ExpectTheLowerOfEqualExperts(const RunMoe& run) {
  MoeCase of(Shape(6, 2), 9);
  reference::Matrix& router = of.layer().router;
  std::vector<float> x;
  for (int32_t k = 0; k < kHidden; ++k) x.push_back(router.At(0, k) > 0 ? 1.0f : -1.0f);
  for (int32_t k = 0; k < kHidden; ++k) {  // all alike but the last, which is far below
    for (int32_t expert = 1; expert < 5; ++expert) router.At(expert, k) = router.At(0, k);
    router.At(5, k) = -router.At(0, k);
  }
  const std::vector<float> tied = run(of, x);
  // The same by a router that prefers experts 0 and 1 beyond doubt, equally.
  for (int32_t k = 0; k < kHidden; ++k) {
    for (int32_t expert = 2; expert < 5; ++expert) router.At(expert, k) = -router.At(0, k);
  }
  EXPECT_EQ(tied, run(of, x));
}

void ExpectAnF32Router(const RunMoe& run, bool f32_rows) {
  enum class By { kRow, kNorm, kWeight };
  for (const By by : {By::kRow, By::kNorm, By::kWeight}) {
    if (by == By::kRow && !f32_rows) continue;
    SCOPED_TRACE(static_cast<int>(by));
    MoeCase of(Shape(2, 1), 2);
    std::fill(of.layer().router.data.begin(), of.layer().router.data.end(), 0.0);
    std::fill(of.layer().norm.begin(), of.layer().norm.end(), 1.0);
    constexpr double kMore = 1.0 + 0x1p-11;
    std::vector<float> x(kHidden, 1.0f);
    if (by == By::kRow) x[1] = static_cast<float>(kMore);
    if (by == By::kNorm) of.layer().norm[1] = kMore;
    of.layer().router.At(0, 0) = 1.0;
    of.layer().router.At(1, 1) = by == By::kWeight ? kMore : 1.0;
    const std::vector<float> got = run(of, x);
    of.layer().router.At(1, 1) = 2.0;
    EXPECT_EQ(got, run(of, x)) << "expert 1 has the higher score";
    of.layer().router.At(0, 0) = 4.0;
    EXPECT_NE(got, run(of, x)) << "and another output than expert 0";
  }
}

void ExpectNansToStayInTheirRow(const RunMoe& run, int32_t rows) {
  MoeCase of(Shape(8, 2), 4);
  std::vector<float> x = of.RandomRows(rows, 3);
  const std::vector<float> clean = run(of, x);
  std::fill_n(x.begin() + kHidden, kHidden, std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> got = run(of, x);
  for (size_t i = 0; i < got.size(); ++i) {
    if (i / kHidden == 1) {
      EXPECT_TRUE(std::isnan(got[i]));
    } else {
      EXPECT_EQ(got[i], clean[i]);
    }
  }
}

}  // namespace tramontane
