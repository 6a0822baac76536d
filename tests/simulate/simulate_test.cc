// The simulated engine against arithmetic done by hand.
#include "bench/simulate/simulated_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "models/kv_layout.h"

namespace tramontane::simulate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two layers of 64 numbers, 4 heads of 16 on 2 of keys and values, feed-forward of 128, 1,000 words:
//
//   a layer   64 * 16 * (2 * 4 + 2 * 2) + 3 * 64 * 128 = 36,864 weights; both 73,728
//   the head  64,000
//   a position in one layer   2 * 2 * 16 * 2 = 128 bytes, 4 * 4 * 16 = 256 operations a query
ModelConfig TwoLayers() {
  ModelConfig config;
  config.layers = 2;
  config.hidden_size = 64;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 128;
  config.vocab_size = 1000;
  return config;
}

struct TwoLayerModel {
  KvFormat format = {.kv_heads = 2, .head_dim = 16, .page_size = 16};
  ModelWork work = WorkOf(TwoLayers(), format);
  KvLayout kv_layout = MakeKvLayout({0, 0}, format);
};

// 1 GB/s, 0.1 TFLOP/s, 100 us a step: what is read decides for all small steps.
DeviceRoofline SlowDevice() {
  DeviceRoofline device;
  device.name = "slow";
  device.bytes_per_s = 1e9;
  device.flops_per_s = 1e11;
  device.step_overhead_ns = 100'000;
  return device;
}

EngineLimits Limits(int32_t steps_in_flight = 1) {
  EngineLimits limits;
  limits.pool_pages = 1000;
  limits.context = 4096;
  limits.steps_in_flight = steps_in_flight;
  return limits;
}

struct Asked {
  int64_t arrival_ns = 0;  // from the start
  int32_t input_tokens = 1;
  int32_t output_tokens = 1;
  int64_t deadline_ns = 1'000'000'000'000;
};

struct Simulated {
  std::vector<load::RequestRecord> records;    // in the order of what was asked
  std::vector<std::vector<int64_t>> token_ns;  // of each, from the start
  EngineLoad load;
};

// Ascending by arrival.
Simulated Simulate(const DeviceRoofline& device, const EngineLimits& limits,
                   const std::vector<Asked>& asked) {
  SimulatedClock clock;
  const TwoLayerModel model;
  SimulatedServer server({model.work, model.kv_layout, device, limits, {}}, clock);
  Simulated run;
  run.records.resize(asked.size());
  run.token_ns.resize(asked.size());
  const int64_t start_ns = clock.Now();
  size_t ended = 0;
  for (size_t i = 0; i < asked.size(); ++i) {
    while (clock.Now() < start_ns + asked[i].arrival_ns) clock.WaitUntil(start_ns + asked[i].arrival_ns);
    load::OutgoingRequest request;
    request.index = static_cast<int64_t>(i);
    request.input_tokens = asked[i].input_tokens;
    for (int32_t id = 0; id < request.input_tokens; ++id) {
      request.ids.push_back(static_cast<int32_t>(i) * 1'000'000 + id);  // no two begin alike
    }
    request.output_tokens = asked[i].output_tokens;
    request.deadline_ns = asked[i].deadline_ns;
    server.Send(std::move(request), [&](load::RequestRecord record) {
      const auto index = static_cast<size_t>(record.index);
      for (const int64_t ns : record.content_ns) run.token_ns[index].push_back(ns - start_ns);
      run.records[index] = std::move(record);
      ++ended;
    });
  }
  while (ended < asked.size()) clock.WaitUntil(clock.Now() + 1'000'000'000);
  run.load = server.engine_load();
  return run;
}

TEST(SimulateTest, CountsAModelsWeightsAndItsKeys) {
  const TwoLayerModel model;
  EXPECT_EQ(model.work.layer_weights, 73'728);
  EXPECT_EQ(model.work.head_weights, 64'000);
  EXPECT_EQ(model.work.bytes_per_weight, 2);
  EXPECT_EQ(model.work.key_bytes, 128);
  EXPECT_EQ(model.work.key_flops, 256);
}

// One prompt of 100 tokens and three tokens of output.
//
//   prefill   137,728 weights of 2 bytes: 275.456 us (their products: 148.7); 5,050 keys in each of 2 layers
//             are 10,100 * 256 operations: 25.856 us (reading 200 positions: 25.6); with 100 us 401.312 us
//   decode    the same weights; 2 * 101 positions of 128 bytes: 25.856 us, so 401.312 us again; then 2 * 102:
//             26.112 us, 401.568 us
TEST(SimulateTest, OneRequestTakesWhatTheArithmeticSays) {
  for (const int32_t steps_in_flight : {1, 2}) {
    const Simulated run = Simulate(SlowDevice(), Limits(steps_in_flight),
                                   {{.arrival_ns = 5'000'000, .input_tokens = 100, .output_tokens = 3}});
    EXPECT_THAT(run.token_ns[0],
                ElementsAre(5'000'000 + 401'312, 5'000'000 + 802'624, 5'000'000 + 1'204'192));
    EXPECT_EQ(run.load.held_pages, 0);
  }
}

// As above, and 10 us for each token that is drawn.
TEST(SimulateTest, EachDrawnTokenTakesItsTime) {
  DeviceRoofline device = SlowDevice();
  device.sample_ns = 10'000;
  const Simulated run =
      Simulate(device, Limits(), {{.arrival_ns = 5'000'000, .input_tokens = 100, .output_tokens = 3}});
  EXPECT_THAT(run.token_ns[0], ElementsAre(5'000'000 + 411'312, 5'000'000 + 822'624, 5'000'000 + 1'234'192));
}

// Of large prompts the products decide: 512 tokens are 2 * 73,728 * 512 operations, 754.97 us, and no logits.
TEST(SimulateTest, APromptOfSeveralChunksIsBoundByItsProducts) {
  const TwoLayerModel model;
  const PrefillCost keys(model.kv_layout, 4096);
  StepPlan plan;
  Sequence sequence;
  plan.lane = Lane::kPrefill;
  plan.rows = {{.sequence = &sequence, .start = 0, .count = 512}};
  plan.tokens = 512;
  plan.attended_keys = 2 * (512 * 513 / 2);
  // Attention: 262,656 * 256 operations, 672.4 us.
  EXPECT_NEAR(static_cast<double>(StepNs(plan, model.work, keys, SlowDevice())), 100'000 + 754'975 + 672'399,
              2);
}

// b arrives while a decodes, and is prefilled in the next step but one at the latest.
TEST(SimulateTest, RequestsShareTheDeviceByTheEnginesLanes) {
  const Simulated run = Simulate(SlowDevice(), Limits(),
                                 {{.arrival_ns = 0, .input_tokens = 100, .output_tokens = 20},
                                  {.arrival_ns = 2'000'000, .input_tokens = 1000, .output_tokens = 5},
                                  {.arrival_ns = 900'000'000, .input_tokens = 10, .output_tokens = 2}});
  EXPECT_EQ(run.token_ns[0].size(), 20u);
  EXPECT_EQ(run.token_ns[1].size(), 5u);
  EXPECT_EQ(run.load.prefill_steps, 1 + 2 + 1) << "1,000 tokens are two chunks of at most 512";
  // Alone: two steps of products and attention. Beside a: a decode step between them, and one under way.
  const int64_t alone_ns = 2 * 100'000 + 1'474'560 + 1'280 + 2'562'560;
  const int64_t ttft_ns = run.token_ns[1][0] - 2'000'000;
  EXPECT_GT(ttft_ns, alone_ns);
  EXPECT_LT(ttft_ns, alone_ns + 3 * 402'000);
  EXPECT_EQ(run.token_ns[2][0] - 900'000'000, 100'000 + 275'456 + 2'560) << "nothing else runs";
}

TEST(SimulateTest, WhatTheDoorRefusesHasNoTokens) {
  const Simulated run = Simulate(SlowDevice(), Limits(),
                                 {{.arrival_ns = 0, .input_tokens = 5000, .output_tokens = 1},
                                  {.arrival_ns = 0, .input_tokens = 10, .output_tokens = 1}});
  EXPECT_TRUE(run.token_ns[0].empty());
  EXPECT_EQ(load::OutcomeName(run.records[0].outcome, run.records[0].status), "http_400");
  EXPECT_THAT(run.records[0].error, HasSubstr("4096"));
  EXPECT_EQ(run.token_ns[1].size(), 1u);
}

// One may wait: the first runs from its arrival on, the third finds the queue full.
TEST(SimulateTest, AFullQueueRefusesAsTheServerWould) {
  EngineLimits limits = Limits();
  limits.max_sequences = 1;
  limits.max_choices = 1;
  limits.max_queued_requests = 1;
  const Simulated run = Simulate(SlowDevice(), limits,
                                 {{.arrival_ns = 0, .input_tokens = 100, .output_tokens = 10},
                                  {.arrival_ns = 1'000'000, .input_tokens = 100, .output_tokens = 10},
                                  {.arrival_ns = 2'000'000, .input_tokens = 100, .output_tokens = 10}});
  EXPECT_EQ(run.records[1].outcome, load::Outcome::kOk);
  EXPECT_EQ(load::OutcomeName(run.records[2].outcome, run.records[2].status), "http_429");
  EXPECT_THAT(run.records[2].error, HasSubstr("at most 1 requests (max_queued_requests)"));
}

// Six tokens are there after 2.4 ms (the arithmetic above); the seventh would come after 2.8.
TEST(SimulateTest, ATimeoutEndsARequestAndFreesItsPlace) {
  EngineLimits limits = Limits();
  limits.max_sequences = 1;
  limits.max_choices = 1;
  const Simulated run =
      Simulate(SlowDevice(), limits,
               {{.arrival_ns = 0, .input_tokens = 100, .output_tokens = 1000, .deadline_ns = 2'500'000},
                {.arrival_ns = 0, .input_tokens = 100, .output_tokens = 1}});
  EXPECT_EQ(run.records[0].outcome, load::Outcome::kTimeout);
  EXPECT_EQ(run.token_ns[0].size(), 6u);
  EXPECT_EQ(run.records[0].output_tokens, 6);
  ASSERT_EQ(run.token_ns[1].size(), 1u);
  EXPECT_GT(run.token_ns[1][0], 2'500'000);
  EXPECT_LT(run.token_ns[1][0], 4'000'000) << "at once, once the step under way has ended";
}

TEST(DeviceRooflineTest, TheDevicesOfConfigsAreSound) {
  std::ifstream file(TRAMONTANE_SOURCE_DIR "/configs/devices/h200.json");
  std::stringstream text;
  text << file.rdbuf();
  const auto device = ParseDeviceRoofline(text.str(), "h200.json");
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(device->name, "h200");
  EXPECT_EQ(device->bytes_per_s, 4.8e12);
  EXPECT_EQ(device->step_overhead_ns, 200'000);
}

TEST(DeviceRooflineTest, ErrorsNameFileKeyAndValue) {
  const std::string sound =
      R"({"name": "d", "bytes_per_s": 1e12, "flops_per_s": 1e14, "step_overhead_us": 5)";
  EXPECT_TRUE(ParseDeviceRoofline(sound + "}", "f").ok());
  EXPECT_THAT(ParseDeviceRoofline("[]", "f").status().message(), HasSubstr("f: must be a JSON object"));
  EXPECT_THAT(ParseDeviceRoofline(sound + R"(, "memory_share": 2})", "f").status().message(),
              HasSubstr("f: memory_share is 2, the most is 1"));
  EXPECT_EQ(ParseDeviceRoofline(sound + R"(, "sample_us": 2.5})", "f")->sample_ns, 2'500);
  EXPECT_THAT(ParseDeviceRoofline(sound + R"(, "sample_us": -1})", "f").status().message(),
              HasSubstr("f: sample_us is missing, or not in 0 .. "));
  EXPECT_THAT(ParseDeviceRoofline(sound + R"(, "flop": 2})", "f").status().message(),
              HasSubstr("f: flop is 2, which is no term of a device"));
  EXPECT_THAT(ParseDeviceRoofline(R"({"name": "d", "bytes_per_s": 1})", "f").status().message(),
              HasSubstr("f: flops_per_s is missing or not above 0"));
}

}  // namespace
}  // namespace tramontane::simulate
