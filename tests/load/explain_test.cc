// Single requests explained by the stages that a server told.
#include "bench/load/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace tramontane::load {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

constexpr int64_t kMs = 1'000'000;

// Intended at 1 s, sent 2 ms later, content `ttft_ms` after the intended time.
RequestRecord Request(int64_t index, int64_t ttft_ms, const std::string& timing) {
  RequestRecord record;
  record.index = index;
  record.request_id = "r" + std::to_string(index);
  record.intended_ns = 1000 * kMs;
  record.sent_ns = 1002 * kMs;
  record.content_ns = {(1000 + ttft_ms) * kMs};
  record.timing_json = timing;
  return record;
}

TEST(ExplainTest, PartsAddUpToTheTtft) {
  const std::vector<ExplainedRequest> explained =
      Explain({Request(0, 50, R"({"receive_ms": 1, "parse_ms": 0.5, "tokenize_ms": 2, "queue_ms": 10,
                          "prefill_run_ms": 20, "prefill_wait_ms": 4, "sample_ms": 0.25, "hold_ms": 0,
                          "deliver_ms": 0.25, "ttft_ms": 38, "chunks": 2})")});
  ASSERT_EQ(explained.size(), 3u);
  EXPECT_EQ(explained[0].request_id, "r0");
  EXPECT_DOUBLE_EQ(explained[0].ttft_ms, 50);
  EXPECT_THAT(explained[0].parts, ElementsAre(Pair("client", 2), Pair("receive", 1), Pair("parse", 0.5),
                                              Pair("tokenize", 2), Pair("queue", 10), Pair("prefill_run", 20),
                                              Pair("prefill_wait", 4), Pair("sample", 0.25), Pair("hold", 0),
                                              Pair("deliver", 0.25), Pair("network+client", 10)));
}

TEST(ExplainTest, AnAccountLongerThanWhatTheClientSawLeavesLessThanNothing) {
  const auto explained = Explain({Request(0, 10, R"({"queue_ms": 12, "ttft_ms": 12})")});
  ASSERT_FALSE(explained.empty());
  EXPECT_THAT(explained[0].parts,
              ElementsAre(Pair("client", 2), Pair("queue", 12), Pair("network+client", -4)));
  std::ostringstream out;
  WriteExplained(explained, out);
  EXPECT_THAT(out.str(), HasSubstr("network+client       -4.00"));
}

TEST(ExplainTest, TheRequestsAreThoseNearestToThePercentiles) {
  std::vector<RequestRecord> records;
  for (int64_t i = 0; i < 101; ++i) records.push_back(Request(i, 10 + i, R"({"ttft_ms": 5, "queue_ms": 5})"));
  const auto explained = Explain(records);
  ASSERT_EQ(explained.size(), 3u);
  EXPECT_EQ(explained[0].request_id, "r50");
  EXPECT_EQ(explained[1].request_id, "r95");
  EXPECT_EQ(explained[2].request_id, "r99");
}

TEST(ExplainTest, WhoeverToldNothingIsNotExplained) {
  RequestRecord failed = Request(2, 30, R"({"ttft_ms": 5})");
  failed.outcome = Outcome::kStreamError;
  const auto explained =
      Explain({Request(0, 20, ""), Request(1, 25, R"({"ttft_ms": null})"), failed, Request(3, 40, "[1]")});
  EXPECT_TRUE(explained.empty());
  std::ostringstream out;
  WriteExplained(explained, out);
  EXPECT_THAT(out.str(), HasSubstr("told no stages"));
}

}  // namespace
}  // namespace tramontane::load
