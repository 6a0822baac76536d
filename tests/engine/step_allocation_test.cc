// What a decode step takes from the heap does not grow with its rows: the engine and its runner over a
// backend, one step after another on this thread, whose allocations alone are counted. The kernels of the
// CUDA backend are not run: what they come to here is the emulator's, and every token is 0.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/emulator/emulator.h"
#include "tests/engine/allocation_counter.h"
#include "tests/support/cuda_device.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

struct Case {
  const char* name;
  BackendPtr (*make)();
  int32_t queue_nodes = 0;  // by which steps differ: the emulator's queue of ops grows by several at a time
  int32_t few = 2;  // rows; of those on the device so many that the same kernels serve them as serve many
  bool recorded = false;
  bool penalties = false;
};

// Of each decode step while `rows` sequences decode, once lists have grown to what such steps need.
std::vector<int64_t> AllocationsOfSteps(const std::string& folder, const Case& c, int32_t rows) {
  constexpr int32_t kTokens = 100, kSkipped = 30, kCounted = 60;
  BackendEngine::Options options;
  options.limits = SmallLimits(2000);
  options.limits.max_sequences = rows;
  options.limits.max_step_tokens = options.limits.max_logit_rows = rows;  // all of them in one step
  options.limits.context = 128;
  options.limits.max_queued_requests = rows;
  options.limits.output_queue_steps = 8;  // each has a list that grows once
  options.recorded = c.recorded;
  BackendEngine test(c.make(), folder, options);
  std::vector<std::unique_ptr<StreamReader>> readers;
  for (int32_t r = 0; r < rows; ++r) {
    Request request = MakeRequest("r" + std::to_string(r), 5, kTokens, static_cast<uint32_t>(r));
    if (c.penalties) {
      request.sampling.repetition_penalty = 1.1f;
      request.sampling.frequency_penalty = 0.2f;
      request.sampling.presence_penalty = 0.1f;
      request.sampling.logit_bias = {{7, 0.5f}};
    }
    readers.push_back(test.Submit(std::move(request)));
  }
  while (test.engine().Load().output_tokens < int64_t{rows} * kSkipped) test.Step();
  std::vector<int64_t> counts;
  while (counts.size() < kCounted) {
    const int64_t before = AllocationsOfThread();
    const bool worked = test.Step();
    const int64_t taken = AllocationsOfThread() - before;
    if (worked) counts.push_back(taken);
  }
  for (const auto& reader : readers) reader->stream().Cancel();
  while (!test.engine().idle()) test.Step();
  return counts;
}

class StepAllocationTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { emulator::CurrentSettings() = {.runs = false}; }
  void TearDown() override { emulator::CurrentSettings() = {}; }
};
BackendPtr MakeOneThreadCpu() { return MakeCpuBackend({.threads = 1, .variant = ""}).value(); }
BackendPtr MakeCuda() { return MakeCudaTestBackend(); }
INSTANTIATE_TEST_SUITE_P(
    Backends, StepAllocationTest,
    testing::Values(
        Case{.name = "Cpu", .make = MakeOneThreadCpu},
        Case{.name = "CpuWithPenalties", .make = MakeOneThreadCpu, .penalties = true},
        Case{.name = "Cuda", .make = MakeCuda, .queue_nodes = 1, .few = 20},
        Case{.name = "CudaWithPenalties", .make = MakeCuda, .queue_nodes = 1, .few = 20, .penalties = true},
        Case{.name = "CudaRecorded", .make = MakeCuda, .queue_nodes = 1, .few = 20, .recorded = true},
        Case{.name = "CudaRecordedWithPenalties",
             .make = MakeCuda,
             .queue_nodes = 1,
             .few = 20,
             .recorded = true,
             .penalties = true}),
    [](const auto& info) { return info.param.name; });

// Steps differ by the lists of ids, pages and names that double in them: in 60 tokens at most ten times a
// sequence.
TEST_P(StepAllocationTest, ADecodeStepOfManyRowsAllocatesNoMoreThanOneOfFew) {
  constexpr int32_t kMany = 48, kMostDoublings = 10;
  TinyModel model;
  model.hidden = 64;
  model.head_dim = 32;  // the least that both backends have
  model.Randomise(1);
  const TempFolder folder;
  model.WriteMistral(folder);
  const std::vector<int64_t> few = AllocationsOfSteps(folder.path(), GetParam(), GetParam().few);
  const std::vector<int64_t> many = AllocationsOfSteps(folder.path(), GetParam(), kMany);
  const int64_t least = *std::min_element(many.begin(), many.end());
  EXPECT_NEAR(least, *std::min_element(few.begin(), few.end()), GetParam().queue_nodes);
  EXPECT_GT(least, 0) << "nothing is counted";
  int64_t beyond = 0;
  for (const int64_t count : many) beyond += count - least;
  EXPECT_LE(beyond, kMany * kMostDoublings);
}

int64_t MostBytesOfAStep(SteppedEngine& test) {
  int64_t most = 0;
  while (!test.engine().idle()) {
    const int64_t before = AllocatedBytesOfThread();
    test.Step();
    most = std::max(most, AllocatedBytesOfThread() - before);
  }
  return most;
}

// The end of the last request finds out nothing by going through all that could be kept.
TEST(StepBytesTest, NoStepTakesMemoryInProportionToWhatTheTiersCouldHold) {
  const TestTier large = {.host_pages = 100'000};
  SteppedEngine test(SmallLimits(100), {0}, nullptr, large);
  const auto reader = test.Submit(MakeRequest("r", 9, 4));
  EXPECT_LT(MostBytesOfAStep(test), 100'000);
  reader->WaitToEnd();
}

TEST(StepBytesTest, ScoresOfPromptsThatWaitTakeNoMemory) {
  constexpr int32_t kWaiting = 50, kTokens = 2000;
  EngineLimits limits = SmallLimits(1000);
  limits.max_sequences = 1;
  limits.context = 4000;
  SteppedEngine test(limits);
  const auto running = test.Submit(MakeRequest("running", 5, 1000));
  for (int step = 0; step < 5; ++step) test.Step();
  std::vector<std::unique_ptr<StreamReader>> waiting;
  for (int32_t w = 0; w < kWaiting; ++w) {
    Request request = MakeRequest("w" + std::to_string(w), kTokens, 1, static_cast<uint32_t>(w));
    request.output.prompt_logprobs = 0;
    waiting.push_back(test.Submit(request));
    ASSERT_TRUE(waiting.back()->refused().ok()) << waiting.back()->refused();
  }
  const int64_t before = AllocatedBytesOfThread();
  for (int step = 0; step < 5; ++step) test.Step();
  EXPECT_LT(AllocatedBytesOfThread() - before, 2 * kWaiting * kTokens) << "a score takes 24 bytes and more";
  running->stream().Cancel();
  for (const auto& reader : waiting) reader->stream().Cancel();
  while (!test.engine().idle()) test.Step();
}

}  // namespace
}  // namespace tramontane
