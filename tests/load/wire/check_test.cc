// The check's own arithmetic, and its table; its times are for an idle machine and not tested here.
#include "bench/load/check/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tramontane::load {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(LateRequests, WithoutAStopThereAreNone) {
  StopCase stop;
  stop.stop_ms = 0;
  EXPECT_EQ(LateRequests(stop), 0);
}

// Requests at 600, 700, ... 1500 meet the stop of 575 to 1575; the last of them is answered at 1615, 115 ms
// after it was intended, which is below the threshold.
TEST(LateRequests, WithoutACapThoseOfTheStopAreLate) {
  EXPECT_EQ(LateRequests(StopCase{}), 9);
  StopCase lower;
  lower.threshold_ms = 60;
  EXPECT_EQ(LateRequests(lower), 10);
}

// Two are answered at 1615, and the eight behind them in pairs 40 ms apart, until 1775; then the request of
// 1600 is sent and answered at 1815, which is late, and with it that of 1700, which is not.
TEST(LateRequests, ACapDelaysThoseBehindTheStopToo) {
  StopCase stop;
  stop.cap = 2;
  EXPECT_EQ(LateRequests(stop), 11);
  stop.cap = 1000;
  EXPECT_EQ(LateRequests(stop), 9);
}

TEST(CheckReport, HoldsWhereEachLineHolds) {
  CheckReport report;
  report.lines.push_back({"tokens", "8", "8", "0", true});
  EXPECT_TRUE(report.holds());
  EXPECT_THAT(report.Table(), Not(HasSubstr("EXCEEDED")));
  report.lines.push_back({"events", "8", "7", "-1", false});
  EXPECT_FALSE(report.holds());
  EXPECT_THAT(report.Table(), HasSubstr("metric  truth  measured  error\ntokens  8      8         0\n"));
  EXPECT_THAT(report.Table(), HasSubstr("EXCEEDED"));
}

}  // namespace
}  // namespace tramontane::load
