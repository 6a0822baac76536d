// Percentiles, means and deviations beside numpy's, and what failures do to a percentile.
#include "bench/load/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tramontane::load {
namespace {

TEST(LoadStatisticsTest, AgreeWithNumpy) {
  std::ifstream file(TRAMONTANE_SOURCE_DIR "/tests/golden/load/statistics.json");
  const auto golden = nlohmann::json::parse(file);
  ASSERT_EQ(golden["cases"].size(), 6u);
  for (const auto& wanted : golden["cases"]) {
    SCOPED_TRACE(wanted["name"].get<std::string>());
    auto samples = wanted["samples"].get<std::vector<double>>();
    // The sum of n numbers in another order differs by n roundings at most.
    const double rounding = 1e-13 * std::fabs(wanted["mean"].get<double>());
    EXPECT_NEAR(Mean(samples), wanted["mean"].get<double>(), rounding);
    EXPECT_NEAR(StandardDeviation(samples), wanted["std"].get<double>(), 10 * rounding);
    std::sort(samples.begin(), samples.end());
    EXPECT_DOUBLE_EQ(Percentile(samples, 50), wanted["median"].get<double>());
    for (const auto& pair : wanted["percentiles"]) {
      EXPECT_DOUBLE_EQ(Percentile(samples, pair[0].get<double>()), pair[1].get<double>()) << pair[0];
    }
  }
}

TEST(LoadStatisticsTest, FewIsFewerThanTenSamplesBeyond) {
  EXPECT_TRUE(HasFewBeyond(999, 99));
  EXPECT_FALSE(HasFewBeyond(1000, 99));
  EXPECT_TRUE(HasFewBeyond(9'999, 99.9));
  EXPECT_FALSE(HasFewBeyond(10'000, 99.9));
  EXPECT_FALSE(HasFewBeyond(20, 50));
  EXPECT_TRUE(HasFewBeyond(19, 50));
}

TEST(LoadStatisticsTest, AFailureIsLongerThanEverything) {
  std::vector<double> known;
  for (int i = 0; i < 99; ++i) known.push_back(i);
  // 100 with one failure at the end: rank 98.01 of p99 leans on it, rank 98 does not.
  EXPECT_EQ(CensoredPercentile(known, 1, 99), std::nullopt);
  EXPECT_EQ(CensoredPercentile(known, 1, 9800.0 / 99.0), 98.0);
  EXPECT_EQ(CensoredPercentile(known, 1, 50), 49.5);
  // Without failures it is the percentile.
  EXPECT_EQ(CensoredPercentile(known, 0, 99), Percentile(known, 99));
  // With as many failures the median is no longer that of the successes.
  EXPECT_EQ(CensoredPercentile(known, 99, 25), Percentile(known, 25.0 * 197 / 98));
  EXPECT_EQ(CensoredPercentile({}, 5, 50), std::nullopt);
  EXPECT_EQ(CensoredPercentile({}, 0, 50), std::nullopt);
}

TEST(LoadStatisticsTest, PercentilesAreNamedAsVllmNamesThem) {
  EXPECT_EQ(PercentileName(99), "p99");
  EXPECT_EQ(PercentileName(99.9), "p99.9");
}

}  // namespace
}  // namespace tramontane::load
