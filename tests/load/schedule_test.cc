// What is drawn beforehand: by the seed alone, each request as its class or its trace has it.
#include "bench/load/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace tramontane::load {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();

ScheduleOptions AtRate(double rate) {
  ScheduleOptions options;
  options.seed = 3;
  options.arrivals = ArrivalOptions{ArrivalProcess::kPoisson, rate};
  return options;
}

LengthDistribution Lengths(std::string_view text) {
  return std::move(LengthDistribution::Parse("--tokens", text)).value();
}

std::vector<int64_t> Times(const Schedule& schedule) {
  std::vector<int64_t> times;
  for (const auto& request : schedule.requests) times.push_back(request.plan.intended_ns);
  return times;
}

std::vector<int32_t> Inputs(const Schedule& schedule) {
  std::vector<int32_t> tokens;
  for (const auto& request : schedule.requests) tokens.push_back(request.plan.input_tokens);
  return tokens;
}

TEST(ScheduleTest, TheSameSeedIsTheSameSchedule) {
  ScheduleOptions options = AtRate(10);
  options.classes[0].prompt_tokens = Lengths("uniform:10:500");
  const Schedule once = DrawSchedule(options, 100, kNoEnd), again = DrawSchedule(options, 100, kNoEnd);
  EXPECT_EQ(Times(once), Times(again));
  EXPECT_EQ(Inputs(once), Inputs(again));
  options.seed = 4;
  EXPECT_NE(Times(DrawSchedule(options, 100, kNoEnd)), Times(once));
  EXPECT_NE(Inputs(DrawSchedule(options, 100, kNoEnd)), Inputs(once));
}

TEST(ScheduleTest, MoreRequestsBeginWithTheSameOnes) {
  const auto more = Times(DrawSchedule(AtRate(10), 200, kNoEnd));
  const auto few = Times(DrawSchedule(AtRate(10), 100, kNoEnd));
  EXPECT_TRUE(std::equal(few.begin(), few.end(), more.begin()));
}

TEST(ScheduleTest, AnotherRateChangesNoLengths) {
  ScheduleOptions slow = AtRate(1), fast = AtRate(100);
  slow.classes[0].prompt_tokens = fast.classes[0].prompt_tokens = Lengths("lognormal:100:1");
  EXPECT_EQ(Inputs(DrawSchedule(slow, 50, kNoEnd)), Inputs(DrawSchedule(fast, 50, kNoEnd)));
}

TEST(ScheduleTest, RequestsEndAtTheirNumberOrTheirTime) {
  EXPECT_EQ(DrawSchedule(AtRate(100), 7, kNoEnd).requests.size(), 7u);
  const Schedule second = DrawSchedule(AtRate(100), 1'000'000, 1'000'000'000);
  EXPECT_LT(second.requests.back().plan.intended_ns, 1'000'000'000);
  EXPECT_NEAR(static_cast<double>(second.requests.size()), 100, 40);  // four deviations of a Poisson count
}

TEST(ScheduleTest, LengthsHaveTheDistributionAskedFor) {
  ScheduleOptions options = AtRate(1);
  options.classes[0].prompt_tokens = Lengths("uniform:10:19");
  options.classes[0].output_tokens = Lengths("lognormal:200:0.5");
  const Schedule schedule = DrawSchedule(options, 20'000, kNoEnd);
  std::map<int32_t, int> inputs;
  double logs = 0, squares = 0;
  for (const auto& request : schedule.requests) {
    ++inputs[request.plan.input_tokens];
    const double log = std::log(request.plan.output_tokens / 200.0);
    logs += log;
    squares += log * log;
  }
  EXPECT_EQ(inputs.size(), 10u);
  EXPECT_EQ(inputs.begin()->first, 10);
  EXPECT_EQ(inputs.rbegin()->first, 19);
  for (const auto& [tokens, count] : inputs) EXPECT_NEAR(count, 2000, 180) << tokens;  // four deviations
  EXPECT_NEAR(logs / 20'000, 0, 0.015);
  EXPECT_NEAR(std::sqrt(squares / 20'000), 0.5, 0.012);
}

TEST(ScheduleTest, ClassesComeByTheirWeights) {
  ScheduleOptions options = AtRate(1);
  options.classes.resize(3);
  options.classes[0].weight = 3;
  options.classes[0].prompt_tokens = LengthDistribution(11);
  options.classes[1].weight = 1;
  options.classes[1].prompt_tokens = LengthDistribution(22);
  options.classes[2].weight = 0;
  int counts[3] = {};
  for (const auto& request : DrawSchedule(options, 10'000, kNoEnd).requests) {
    ++counts[request.plan.class_index];
    EXPECT_EQ(request.plan.input_tokens, request.plan.class_index == 0 ? 11 : 22);
  }
  EXPECT_NEAR(counts[0], 7500, 175);  // four deviations
  EXPECT_EQ(counts[2], 0);
}

TEST(ScheduleTest, SharedPrefixesAreBesideTheRequestsOwnTokens) {
  ScheduleOptions options = AtRate(1);
  options.classes[0].prompt_tokens = LengthDistribution(10);
  options.classes[0].shared_prefix = {100, 3};
  std::set<int64_t> prefixes;
  for (const auto& request : DrawSchedule(options, 100, kNoEnd).requests) {
    EXPECT_EQ(request.plan.input_tokens, 110);
    EXPECT_EQ(request.prompt.prefix_tokens, 100);
    prefixes.insert(request.prompt.prefix);
  }
  EXPECT_EQ(prefixes.size(), 3u);
}

TEST(ScheduleTest, ATurnIsLongerByWhatWasSaidBefore) {
  ScheduleOptions options = AtRate(1);
  options.classes[0].prompt_tokens = LengthDistribution(10);
  options.classes[0].output_tokens = LengthDistribution(5);
  options.classes[0].turns = 3;
  const auto requests = DrawSchedule(options, 4 * kOpenConversations, kNoEnd).requests;
  for (size_t i = 0; i < requests.size(); ++i) {
    const size_t turn = i / kOpenConversations;
    EXPECT_EQ(requests[i].plan.input_tokens, turn == 3 ? 10 : static_cast<int32_t>(10 + 15 * turn));
    const auto& first = requests[i % kOpenConversations];
    EXPECT_EQ(requests[i].prompt.own == first.prompt.own, turn < 3) << i;
  }
}

std::shared_ptr<const std::vector<TraceRow>> SmallTrace() {
  return std::make_shared<const std::vector<TraceRow>>(std::vector<TraceRow>{
      {0, 100, 10, {}}, {1'000'000'000, 1000, 20, {1, 2}}, {1'000'000'000, 50, 30, {1}}});
}

TEST(ScheduleTest, ATraceIsReplayedAndScaled) {
  ScheduleOptions options;
  options.trace = SmallTrace();
  EXPECT_THAT(Times(DrawSchedule(options, 100, kNoEnd)), ElementsAre(0, 1'000'000'000, 1'000'000'000));
  options.rate_scale = 4;
  options.length_scale = 0.5;
  const Schedule scaled = DrawSchedule(options, 100, kNoEnd);
  EXPECT_THAT(Times(scaled), ElementsAre(0, 250'000'000, 250'000'000));
  EXPECT_THAT(Inputs(scaled), ElementsAre(50, 500, 25));
  EXPECT_EQ(scaled.requests[1].prompt.block_tokens, 256);
  EXPECT_EQ(scaled.requests[2].plan.output_tokens, 15);
}

TEST(ScheduleTest, WhatDoesNotFitIsLeftOutAndCounted) {
  ScheduleOptions options;
  options.trace = SmallTrace();
  options.max_context = 110;
  const Schedule schedule = DrawSchedule(options, 100, kNoEnd);
  EXPECT_THAT(Inputs(schedule), ElementsAre(100, 50));
  EXPECT_EQ(schedule.left_out, 1);
  EXPECT_EQ(schedule.requests[1].plan.index, 1);
  ScheduleOptions none = AtRate(1);  // nothing of it ever fits: ends all the same
  none.max_context = 1;
  EXPECT_TRUE(DrawSchedule(none, 100, kNoEnd).requests.empty());
}

TEST(ScheduleTest, ClumpsAreSpread) {
  auto rows = std::make_shared<std::vector<TraceRow>>();
  for (int i = 0; i < 100; ++i) rows->push_back({i / 50 * 3'000'000'000LL, 10, 1, {}});
  ScheduleOptions options;
  options.trace = rows;
  EXPECT_EQ(Times(DrawSchedule(options, 100, kNoEnd))[49], 0);
  options.spread_seconds = 3;
  const auto times = Times(DrawSchedule(options, 100, kNoEnd));
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_GT(times[25], 1'000'000'000);
  EXPECT_LT(times[49], 3'000'000'000);
  EXPECT_LT(times[99], 6'000'000'000);
  EXPECT_EQ(std::set<int64_t>(times.begin(), times.end()).size(), 100u);
}

TEST(WorkTest, AMixIsAListOfClasses) {
  WorkClass defaults;
  defaults.output_tokens = LengthDistribution(77);
  const auto classes = ParseMix("mix.json",
                                R"([{"name": "chat", "weight": 3, "prompt_tokens": "uniform:5:5", "turns": 4},
          {"name": "batch", "weight": 0.5, "prompt_tokens": 9, "output_tokens": 2, "shared_prefix": "8:2"}])",
                                defaults);
  ASSERT_TRUE(classes.ok()) << classes.status();
  Random random(1, RandomUse::kInputTokens);
  EXPECT_EQ((*classes)[0].name, "chat");
  EXPECT_EQ((*classes)[0].weight, 3);
  EXPECT_EQ((*classes)[0].prompt_tokens.Draw(random), 5);
  EXPECT_EQ((*classes)[0].output_tokens.Draw(random), 77);
  EXPECT_EQ((*classes)[0].turns, 4);
  EXPECT_EQ((*classes)[1].prompt_tokens.Draw(random), 9);
  EXPECT_EQ((*classes)[1].shared_prefix.tokens, 8);
  EXPECT_EQ((*classes)[1].shared_prefix.count, 2);
}

TEST(WorkTest, WhatIsWrongWithAMixIsNamed) {
  const struct {
    std::string text, said;
  } cases[] = {
      {"{}", "must be a JSON list"},
      {"[]", "must be a JSON list"},
      {"[3]", "m[0]: the class"},
      {R"([{"weight": 1}])", "m[0]: name is missing"},
      {R"([{"name": "a", "color": 1}])", "color"},
      {R"([{"name": "a", "weight": -1}])", "weight is \"-1\""},
      {R"([{"name": "a", "turns": 0}])", "turns is \"0\""},
      {R"([{"name": "a", "prompt_tokens": "uniform:9:3"}])", "uniform:9:3"},
      {R"([{"name": "a", "shared_prefix": "9"}])", "shared_prefix is \"9\""},
      {R"([{"name": "a"}, {"name": "a"}])", "m[1]: name is \"a\""},
      {R"([{"name": "a", "weight": 0}])", "sum is 0"},
  };
  for (const auto& wrong : cases) {
    EXPECT_THAT(ParseMix("m", wrong.text, {}).status().message(), HasSubstr(wrong.said)) << wrong.text;
  }
}

// ---- bounds

TEST(ScheduleSizeTest, MoreRequestsThanAreHeldAreRefusedBeforeTheyAreDrawn) {
  EXPECT_TRUE(CheckSize(AtRate(10), kMaxScheduledRequests, kNoEnd).ok());
  EXPECT_THAT(CheckSize(AtRate(10), kMaxScheduledRequests + 1, kNoEnd).message(),
              testing::AllOf(testing::HasSubstr("5000001"), testing::HasSubstr("at most 5000000")));
  constexpr int64_t kSecond = 1'000'000'000;
  EXPECT_TRUE(CheckSize(AtRate(1e6), kNoEnd, 5 * kSecond).ok());
  EXPECT_FALSE(CheckSize(AtRate(1e6), kNoEnd, 6 * kSecond).ok());
  EXPECT_TRUE(CheckSize(AtRate(1e6), 100, 6 * kSecond).ok());
  EXPECT_FALSE(CheckSize(AtRate(std::numeric_limits<double>::infinity()), kNoEnd, kSecond).ok());
  const ScheduleOptions closed_loop;
  EXPECT_TRUE(CheckSize(closed_loop, kNoEnd, kNoEnd).ok());
  EXPECT_FALSE(CheckSize(closed_loop, 100'000'000, kNoEnd).ok());
}

TEST(ScheduleSizeTest, TimesThatNoRunReachesAreRefusedAndFitAnyway) {
  EXPECT_FALSE(CheckSize(AtRate(1e-6), 5'000'000, kNoEnd).ok());
  EXPECT_TRUE(CheckSize(AtRate(1e-6), 5'000'000, 1'000'000'000).ok());
  ScheduleOptions replay;
  replay.trace = std::make_shared<const std::vector<TraceRow>>(
      std::vector<TraceRow>{{0, 1, 1, {}}, {kMaxTraceSeconds * 1'000'000'000, 1, 1, {}}});
  replay.spread_seconds = 1e7;
  EXPECT_TRUE(CheckSize(replay, kNoEnd, kNoEnd).ok());
  replay.rate_scale = 1e-6;
  EXPECT_THAT(CheckSize(replay, kNoEnd, kNoEnd).message(), testing::HasSubstr("--rate-scale"));
  const auto requests = DrawSchedule(replay, 10, kNoEnd).requests;
  EXPECT_EQ(requests.back().plan.intended_ns, static_cast<int64_t>(kMaxArrivalNs));
  EXPECT_EQ(DrawSchedule(AtRate(1e-300), 1, kNoEnd).requests[0].plan.intended_ns,
            static_cast<int64_t>(kMaxArrivalNs));
}

}  // namespace
}  // namespace tramontane::load
