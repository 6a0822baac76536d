// The search for a rate, on targets whose limit is known.
#include "bench/load/search.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tramontane::load {
namespace {

// Holds up to `limit`; the k-th confirmation, from 1, up to `confirmed` of it.
MakeProbe LimitOf(double limit, double confirmed = 1) {
  return [=](double rate, int confirmation) -> StatusOr<Probe> {
    Probe probe;
    probe.holds = rate <= limit * (confirmation > 0 ? confirmed : 1.0);
    return probe;
  };
}

TEST(SearchTest, FindsTheLimitFromAnySide) {
  for (const double first : {0.001, 1.0, 36.9, 37.1, 5000.0}) {
    const auto found = FindRate(first, LimitOf(37));
    ASSERT_TRUE(found.ok());
    ASSERT_TRUE(found->rate) << first;
    EXPECT_LE(*found->rate, 37);
    EXPECT_GE(*found->rate, 37 / 1.02);
    const auto confirmations = std::count_if(found->probes.begin(), found->probes.end(),
                                             [](const Probe& probe) { return probe.is_confirmation; });
    EXPECT_EQ(confirmations, 3);
    EXPECT_EQ(found->probes.back().rate, *found->rate);
    EXPECT_EQ(found->probes.front().rate, first);
  }
}

TEST(SearchTest, WhatIsNotConfirmedIsNotFound) {
  const auto found = FindRate(1, LimitOf(37, 0.9));
  ASSERT_TRUE(found->rate);
  EXPECT_LE(*found->rate, 33.3);
  EXPECT_GE(*found->rate, 33.3 / 1.05);
  EXPECT_FALSE(FindRate(1, LimitOf(37, 0.1))->rate);
}

TEST(SearchTest, ATargetWithoutALimitOrBelowEveryRateHasNoRate) {
  const auto all = FindRate(1, LimitOf(1e300));
  EXPECT_FALSE(all->rate);
  EXPECT_EQ(all->why, "every rate held");
  const auto none = FindRate(1, LimitOf(-1));
  EXPECT_FALSE(none->rate);
  EXPECT_EQ(none->why, "no rate held");
}

TEST(SearchTest, AFaultEndsIt) {
  const MakeProbe broken = [](double, int) -> StatusOr<Probe> { return Unavailable("gone"); };
  EXPECT_EQ(FindRate(1, broken).status().message(), "gone");
}

TEST(SearchTest, AStopEndsItWithWhatWasFound) {
  int probes = 0;
  const MakeProbe stopped = [&](double, int) -> StatusOr<Probe> {
    if (++probes == 4) return Status(StatusCode::kCancelled, "stopped");
    Probe probe;
    probe.holds = true;
    return probe;
  };
  const auto found = FindRate(1, stopped);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->probes.size(), 3u);
  EXPECT_FALSE(found->rate);
  EXPECT_EQ(found->why, "the search was stopped");
}

}  // namespace
}  // namespace tramontane::load
