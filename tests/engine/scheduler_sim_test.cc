#include <gtest/gtest.h>

#include <random>

#include "tests/engine/fake_serving.h"
#include "tests/support/test_scale.h"
#include "tests/support/test_seed.h"

namespace tramontane {
namespace {

TEST(SchedulerSimTest, EverythingFinishesInAStormOverTinyPools) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("TRAMONTANE_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const auto from = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const std::vector<std::vector<int32_t>> models = {{0}, {24}, {0, 24}, {0, 16, 16, 16}, {0, 24, 7}};
  const int64_t storms = ScaledCount(200, 20);
  int64_t preemptions = 0;
  for (int64_t storm = 0; storm < storms; ++storm) {
    SCOPED_TRACE("storm " + std::to_string(storm));
    const KvLayout layout =
        TestLayout(models[from(0, models.size() - 1)], static_cast<int32_t>(1 << from(0, 4)));
    const auto page = layout.format.page_size;
    const int64_t least = layout.PagesForSequence(40, page);
    EngineLimits limits = TestLimits(layout, from(least, least * 4));
    limits.context = std::min<int64_t>(limits.context, 200);
    limits.steps_in_flight = static_cast<int32_t>(from(1, 3));
    limits.max_step_tokens = static_cast<int32_t>(from(1, 64));
    limits.context = std::min(limits.context, ContextThatFits(layout, limits.pool_pages, limits));
    limits.max_sequences = static_cast<int32_t>(from(3, 12));
    limits.max_choices = 3;
    limits.max_partial_prefills = static_cast<int32_t>(from(1, 4));
    limits.max_prefill_steps = static_cast<int32_t>(from(1, 3));
    limits.attended_keys_per_token = from(1, 200);
    limits.max_step_cost = from(0, 2) * from(1, 200);
    FakeServing serving(limits, layout);
    const int64_t requests = from(1, 30);
    int64_t submitted = 0;
    for (int64_t step = 0; submitted < requests || serving.unfinished() > 0; ++step) {
      ASSERT_LT(step, 100000) << serving.last_plan();
      while (submitted < requests && from(0, 4) == 0) {
        const int64_t prompt = from(0, 1) == 0 ? from(1, limits.context - 1)
                                               : from(1, std::min<int64_t>(10, limits.context - 1));
        const int64_t output = from(0, std::min<int64_t>(30, limits.context - prompt));
        serving.Submit({.id = "r" + std::to_string(submitted),
                        .prompt_tokens = prompt,
                        .max_tokens = output,
                        .choices = static_cast<int32_t>(from(1, 3)),
                        .prompt_logprobs = from(0, 3) == 0,
                        .stops_after = from(0, 2) == 0 ? from(1, 20) : -1});
        ++submitted;
      }
      if (submitted > 0 && from(0, 40) == 0) serving.Cancel("r" + std::to_string(from(0, submitted - 1)));
      serving.Step();
      if (HasFailure()) return;
    }
    serving.RunUntilIdle(10);
    preemptions += serving.scheduler().preemptions();
  }
  EXPECT_GT(preemptions, storms) << "the pools were not tiny";
}

}  // namespace
}  // namespace tramontane
