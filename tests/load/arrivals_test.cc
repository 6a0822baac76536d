// Arrivals have the distribution that was asked for, and a seed names them for good.
#include "bench/load/arrivals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tramontane::load {
namespace {

std::vector<double> Seconds(const ArrivalOptions& options, int count, uint64_t seed = 1) {
  Arrivals arrivals(options, seed);
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) seconds.push_back(static_cast<double>(arrivals.NextNs()) * 1e-9);
  return seconds;
}

struct Gaps {
  double mean = 0;
  double cv = 0;  // deviation over mean
};

Gaps GapsOf(const std::vector<double>& seconds) {
  double before = 0, sum = 0, squares = 0;
  for (const double at : seconds) {
    const double gap = at - before;
    sum += gap;
    squares += gap * gap;
    before = at;
  }
  const double n = static_cast<double>(seconds.size()), mean = sum / n;
  return {mean, std::sqrt(squares / n - mean * mean) / mean};
}

constexpr int kMany = 200'000;

TEST(ArrivalsTest, PoissonGapsHaveMeanOneOverRateAndAsMuchDeviation) {
  const Gaps gaps = GapsOf(Seconds({ArrivalProcess::kPoisson, 50}, kMany));
  // The mean of n gaps of CV 1 has a deviation of 1/sqrt(n), 0.0022; four of them.
  EXPECT_NEAR(gaps.mean * 50, 1.0, 0.009);
  EXPECT_NEAR(gaps.cv, 1.0, 0.015);
}

TEST(ArrivalsTest, PoissonCountsInWindowsHaveVarianceOfTheirMean) {
  const auto seconds = Seconds({ArrivalProcess::kPoisson, 5}, kMany);
  std::vector<double> counts(static_cast<size_t>(seconds.back()));
  for (const double at : seconds) {
    if (at < static_cast<double>(counts.size())) counts[static_cast<size_t>(at)] += 1;
  }
  double sum = 0, squares = 0;
  for (const double count : counts) {
    sum += count;
    squares += count * count;
  }
  const double n = static_cast<double>(counts.size()), mean = sum / n;
  // The ratio's deviation is sqrt(2/n), 0.007 here.
  EXPECT_NEAR((squares / n - mean * mean) / mean, 1.0, 0.03);
}

TEST(ArrivalsTest, BurstinessIsTheShapeOfGammaGaps) {
  for (const double burstiness : {0.25, 0.5, 1.0, 4.0}) {
    SCOPED_TRACE(burstiness);
    const Gaps gaps = GapsOf(Seconds({ArrivalProcess::kGamma, 10, burstiness}, kMany));
    const double cv = 1.0 / std::sqrt(burstiness);
    EXPECT_NEAR(gaps.mean * 10, 1.0, 0.01 * cv);
    EXPECT_NEAR(gaps.cv / cv, 1.0, 0.03);
  }
}

TEST(ArrivalsTest, ConstantArrivalsAreAGrid) {
  const auto seconds = Seconds({ArrivalProcess::kConstant, 8}, 5);
  EXPECT_EQ(seconds, (std::vector<double>{0, 0.125, 0.25, 0.375, 0.5}));
}

TEST(ArrivalsTest, AnInfiniteRateIsAllAtOnce) { EXPECT_EQ(Seconds({}, 3), (std::vector<double>{0, 0, 0})); }

TEST(ArrivalsTest, ARampFollowsTheIntegralOfItsRate) {
  ArrivalOptions options{ArrivalProcess::kConstant, 10};
  options.ramp_to_rate = 30;
  options.ramp_seconds = 10;
  const auto seconds = Seconds(options, 500);
  // 10 t + t^2 requests up to t seconds within the ramp: 200 at its end, then 30 a second.
  for (size_t i = 0; i <= 200; ++i) {
    const double t = seconds[i];
    EXPECT_NEAR(10 * t + t * t, static_cast<double>(i), 1e-5);
  }
  EXPECT_NEAR(seconds[200], 10.0, 1e-9);
  EXPECT_NEAR(seconds[230], 11.0, 1e-9);
  options = {ArrivalProcess::kConstant, 30};  // and down
  options.ramp_to_rate = 10;
  options.ramp_seconds = 10;
  EXPECT_NEAR(Seconds(options, 201)[200], 10.0, 1e-9);
}

TEST(ArrivalsTest, NothingIsRescaled) {
  // The last of 1,000 Poisson arrivals at 100 a second falls on 10 s only if someone put it there.
  double off = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    off += std::fabs(Seconds({ArrivalProcess::kPoisson, 100}, 1000, seed).back() - 10.0);
  }
  // The mean distance is sqrt(2/pi) * sqrt(1000)/100 = 0.25 s.
  EXPECT_GT(off / 20, 0.1);
  EXPECT_LT(off / 20, 0.5);
}

// The first numbers of a seed, as a Python program computed them from the published algorithms (splitmix64,
// xoshiro256**).
TEST(ArrivalsTest, ASeedNamesTheSameNumbersEverywhere) {
  Random random(42, RandomUse::kArrivals);
  const std::vector<uint64_t> first = {random.Next(), random.Next(), random.Next()};
  EXPECT_EQ(first, (std::vector<uint64_t>{0x7f2481033c03b875, 0xe20c1c6323b6d2ab, 0xc4c23932ac5492a9}));
}

}  // namespace
}  // namespace tramontane::load
