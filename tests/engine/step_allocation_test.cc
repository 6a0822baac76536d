// What a decode step takes from the heap does not grow with its rows: the engine and its runner over the CPU
// backend, one step after another on this thread, whose allocations alone are counted.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/allocation_counter.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

// Of each decode step while `rows` sequences decode, once lists have grown to what such steps need.
std::vector<int64_t> AllocationsOfSteps(const std::string& folder, int32_t rows) {
  constexpr int32_t kTokens = 100, kSkipped = 30, kCounted = 60;
  CpuEngine::Options options;
  options.limits = SmallLimits(2000);
  options.limits.max_sequences = rows;
  options.limits.context = 128;
  options.limits.max_queued_requests = rows;
  options.limits.output_queue_steps = 8;  // each has a list that grows once
  CpuEngine test(folder, options);
  std::vector<std::unique_ptr<StreamReader>> readers;
  for (int32_t r = 0; r < rows; ++r) {
    readers.push_back(
        test.Submit(MakeRequest("r" + std::to_string(r), 5, kTokens, static_cast<uint32_t>(r))));
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

// Steps differ by the lists of ids and pages that double in them: in 60 tokens at most six times a sequence.
TEST(StepAllocationTest, ADecodeStepOfManyRowsAllocatesNoMoreThanOneOfFew) {
  constexpr int32_t kFew = 2, kMany = 48, kMostDoublings = 6;
  TinyModel model;
  model.Randomise(1);
  const TempFolder folder;
  model.WriteMistral(folder);
  const std::vector<int64_t> few = AllocationsOfSteps(folder.path(), kFew);
  const std::vector<int64_t> many = AllocationsOfSteps(folder.path(), kMany);
  const int64_t least = *std::min_element(many.begin(), many.end());
  EXPECT_EQ(least, *std::min_element(few.begin(), few.end()));
  EXPECT_GT(least, 0) << "nothing is counted";
  int64_t beyond = 0;
  for (const int64_t count : many) beyond += count - least;
  EXPECT_LE(beyond, kMany * kMostDoublings);
}

}  // namespace
}  // namespace tramontane
