// Limits: what is written, and how a run is judged by them.
#include "bench/load/slo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tramontane::load {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(SloTest, GoodputIsAListOfLimits) {
  const auto limits = ParseGoodput("--goodput", "ttft:2000  tpot:99.5");
  ASSERT_TRUE(limits.ok()) << limits.status();
  ASSERT_EQ(limits->size(), 2u);
  EXPECT_EQ((*limits)[0].metric, Metric::kTtft);
  EXPECT_EQ((*limits)[0].most_ms, 2000);
  EXPECT_EQ((*limits)[1].metric, Metric::kTpot);
  EXPECT_EQ((*limits)[1].most_ms, 99.5);
  for (const char* wrong : {"", "ttft", "ttft:x", "ttft:-1", "speed:3", "ttft:1:2"}) {
    EXPECT_THAT(ParseGoodput("--goodput", wrong).status().message(), HasSubstr("--goodput")) << wrong;
  }
}

TEST(SloTest, ClausesHaveAMetricAStatisticAndALimit) {
  const auto slo =
      ParseSlo("--slo", "ttft_p99<2000,e2el_sent_mean<3,tpot_median<4.5,itl_p99.9<50,success>0.99");
  ASSERT_TRUE(slo.ok()) << slo.status();
  ASSERT_EQ(slo->size(), 5u);
  EXPECT_EQ((*slo)[0].metric, Metric::kTtft);
  EXPECT_EQ((*slo)[0].limit, 2000);
  EXPECT_EQ((*slo)[1].metric, Metric::kE2elSent);
  EXPECT_TRUE((*slo)[1].statistic.is_mean);
  EXPECT_TRUE((*slo)[4].is_success);
  EXPECT_THAT(PercentilesOf(*slo), ElementsAre(99, 50, 99.9));
  for (const char* wrong : {"", "fast", "ttft<5", "ttft_p99>5", "ttft_p101<5", "ttft_q5<5", "speed_p99<5",
                            "ttft_p99<x", "success>2", "success<1", "ttft_p99<5,", "mlperf"}) {
    EXPECT_THAT(ParseSlo("--slo", wrong).status().message(), HasSubstr("--slo")) << wrong;
  }
}

TEST(SloTest, PresetsAreTheseClauses) {
  const auto texts = [](const char* name) {
    std::vector<std::string> texts;
    const auto slo = ParseSlo("--slo", name);
    for (const SloClause& clause : *slo) texts.push_back(clause.text);
    return texts;
  };
  EXPECT_THAT(texts("mlperf-8b-server"), ElementsAre("ttft_p99<2000", "tpot_p99<100"));
  EXPECT_THAT(texts("mlperf-8b-interactive"), ElementsAre("ttft_p99<500", "tpot_p99<30"));
  EXPECT_THAT(texts("chat"), ElementsAre("ttft_p99<200", "itl_p99<50", "success>0.99"));
}

Summary OfTtfts(int64_t failed, double p99) {
  Summary summary;
  summary.measured = 1000;
  summary.failed = failed;
  summary.completed = 1000 - failed;
  MetricSummary& ttft = summary.metrics[static_cast<size_t>(Metric::kTtft)];
  ttft.mean = 10;
  ttft.percentiles[99] = p99;
  ttft.censored_percentiles[99] = failed > 10 ? std::nullopt : std::optional<double>(p99);
  return summary;
}

bool Met(const char* text, const Summary& summary) {
  return Holds(Judge(std::move(ParseSlo("--slo", text)).value(), summary));
}

TEST(SloTest, FailuresCountAgainstEveryClause) {
  EXPECT_TRUE(Met("ttft_p99<100,success>0.98", OfTtfts(5, 99)));
  EXPECT_FALSE(Met("ttft_p99<99", OfTtfts(0, 99)));
  EXPECT_FALSE(Met("success>0.995", OfTtfts(5, 99)));
  EXPECT_FALSE(Met("ttft_p99<100", OfTtfts(20, 1)));  // falls on a failure
  EXPECT_TRUE(Met("ttft_mean<11", OfTtfts(0, 1)));
  EXPECT_FALSE(Met("ttft_mean<11", OfTtfts(1, 1)));  // one of them is longer than everything
  EXPECT_FALSE(Met("tpot_p99<100", OfTtfts(0, 1)));  // no sample
  const auto verdicts = Judge(std::move(ParseSlo("--slo", "ttft_p99<5,success>0.5")).value(), OfTtfts(0, 9));
  EXPECT_FALSE(verdicts[0].holds);
  EXPECT_EQ(verdicts[0].measured, 9);
  EXPECT_TRUE(verdicts[1].holds);
  EXPECT_EQ(verdicts[1].measured, 1);
}

}  // namespace
}  // namespace tramontane::load
