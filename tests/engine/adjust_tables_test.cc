// The changed logits that the device keeps: every row is sampled by those that its text says, whoever had its
// slot before, and a step uploads what changed and no more.
#include "engine/run/adjust_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/backends/cpu_backend.h"
#include "tests/support/counting_backend.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/placed_sequence.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

using Change = AdjustTables::Change;

std::vector<LogitAdjust> ByToken(const LogitAdjust* begin, const LogitAdjust* end) {
  std::vector<LogitAdjust> sorted(begin, end);
  std::sort(sorted.begin(), sorted.end(),
            [](const LogitAdjust& a, const LogitAdjust& b) { return a.token < b.token; });
  return sorted;
}

bool Same(const std::vector<LogitAdjust>& a, const std::vector<LogitAdjust>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
}

// What the op is given when it runs, and what comes and goes between host and device. Owns the other one.
class SampleWatch final : public CountingBackend {
 public:
  using Draw = std::tuple<uint64_t, int32_t, int64_t>;  // seed, choice, position

  explicit SampleWatch(BackendPtr inner) : CountingBackend(*inner), owned_(std::move(inner)) {}

  std::map<Draw, std::vector<LogitAdjust>> seen;  // of rows with a seed
  int64_t uploaded_bytes = 0, scattered = 0, fences_waited_for = 0;

  OpCode Upload(void* device, const void* host, int64_t bytes) override {
    uploaded_bytes += bytes;
    return CountingBackend::Upload(device, host, bytes);
  }
  OpCode Scatter(const ScatterParams& params) override {
    scattered += params.count;
    return CountingBackend::Scatter(params);
  }
  OpCode WaitFence(uint64_t fence) override {
    ++fences_waited_for;
    return CountingBackend::WaitFence(fence);
  }
  OpCode Sample(const SampleParams& params) override {
    for (int64_t i = 0; i < params.logits.rows; ++i) {
      const SamplingRow& row = params.rows[i];
      if (row.seed == 0) continue;
      seen[{row.seed, row.choice, row.position}] =
          ByToken(params.adjusts + row.adjust_begin, params.adjusts + row.adjust_end);
    }
    return CountingBackend::Sample(params);
  }
  void Destroy() override { delete this; }

 private:
  const BackendPtr owned_;
};

struct RunManner {
  const char* name;
  bool recorded;  // two steps in flight, decode steps replayed
};
class SampledByItsText : public testing::TestWithParam<RunManner> {};
INSTANTIATE_TEST_SUITE_P(Manners, SampledByItsText,
                         testing::Values(RunManner{"OneStepInFlight", false}, RunManner{"TwoRecorded", true}),
                         [](const auto& info) { return info.param.name; });

// Fewer slots than choices, and a pool that preempts.
TEST_P(SampledByItsText, WhoeverHadTheSlotBefore) {
  TinyModel model;
  model.window = {0, 12};
  model.Randomise(7);
  const TempFolder folder;
  model.WriteMistral(folder);
  BackendEngine::Options options;
  options.limits = SmallLimits(/*pool_pages=*/30);
  options.limits.max_sequences = 4;
  options.recorded = GetParam().recorded;
  options.limits.steps_in_flight = GetParam().recorded ? 2 : 1;
  if (GetParam().recorded) options.delayed = DelayedBackend::Runs::kWhenWaitedFor;
  std::vector<int32_t> eos_ids;
  options.wrap_model = [&](std::unique_ptr<Model> inner) {
    eos_ids = inner->config().eos_ids;
    return inner;
  };
  auto* watch = new SampleWatch(MakeCpuBackend({.threads = 1, .variant = ""}).value());
  BackendEngine test(BackendPtr(watch), folder.path(), options);

  std::vector<Request> requests;
  std::vector<std::unique_ptr<StreamReader>> readers;
  std::vector<StreamReader*> all;
  for (int32_t i = 0; i < 24; ++i) {
    Request request = MakeRequest("r" + std::to_string(i), 1 + 7 * i % 45, 16, static_cast<uint32_t>(i));
    request.sampling.temperature = 0.9f;
    request.sampling.seed = static_cast<uint64_t>(i) + 1;
    request.choices = 1 + i % 3;
    if (i % 2 == 0) request.sampling.repetition_penalty = 1.2f;
    if (i % 3 == 1) request.sampling.presence_penalty = 0.5f;
    if (i % 4 == 2) request.sampling.frequency_penalty = 0.3f;
    if (i % 5 < 3) request.sampling.logit_bias = {{3, 1.5f}, {9, -2.0f}, {40, 0.5f}};
    if (i % 4 > 1) {
      request.stopping.min_tokens = 5;
      request.stopping.ignore_eos = false;
      request.stopping.stop_token_ids = {9, 11};
    }
    requests.push_back(request);
    readers.push_back(test.Submit(request));
    ASSERT_TRUE(readers.back()->refused().ok()) << readers.back()->refused();
    all.push_back(readers.back().get());
  }
  test.RunToEnd(all);
  EXPECT_GT(test.engine().Load().preemptions, 0);

  int64_t with_changes = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(requests[i].id);
    for (int32_t c = 0; c < requests[i].choices; ++c) {
      SamplingHistory history(requests[i], eos_ids);
      auto position = static_cast<int64_t>(requests[i].prompt.size());
      for (const int32_t id : readers[i]->choice(c).ids) {
        const auto found = watch->seen.find({*requests[i].sampling.seed, c, position});
        ASSERT_NE(found, watch->seen.end()) << "choice " << c << " position " << position;
        const auto wanted =
            ByToken(history.adjusts().data(), history.adjusts().data() + history.adjusts().size());
        EXPECT_TRUE(Same(found->second, wanted)) << "choice " << c << " position " << position;
        with_changes += wanted.empty() ? 0 : 1;
        history.Append(id);
        ++position;
      }
    }
  }
  EXPECT_GT(with_changes, 300);
}

// What each step behind the first token costs.
struct StepTraffic {
  int64_t bytes = 0, scattered = 0, fences = 0;
  bool operator==(const StepTraffic&) const = default;
};
std::vector<StepTraffic> DecodeTraffic(const std::string& folder, const Request& request) {
  BackendEngine::Options options;
  options.limits = SmallLimits(100);
  auto* watch = new SampleWatch(MakeCpuBackend({.threads = 1, .variant = ""}).value());
  BackendEngine test(BackendPtr(watch), folder, options);
  auto reader = test.Submit(request);
  while (test.engine().Load().output_tokens == 0) test.Step();
  std::vector<StepTraffic> steps;
  while (!test.engine().idle()) {
    const StepTraffic before = {watch->uploaded_bytes, watch->scattered, watch->fences_waited_for};
    if (!test.Step()) continue;
    steps.push_back({watch->uploaded_bytes - before.bytes, watch->scattered - before.scattered,
                     watch->fences_waited_for - before.fences});
  }
  reader->WaitToEnd();
  EXPECT_TRUE(reader->status().ok()) << reader->status();
  return steps;
}

TEST(AdjustTables, APenaltyCostsAStepOneEntryHoweverLongTheText) {
  TinyModel model;
  model.Randomise(7);
  const TempFolder folder;
  model.WriteMistral(folder);
  for (const int64_t prompt_tokens : {3, 51}) {
    Request request = MakeRequest("r", prompt_tokens, 10);
    const std::vector<StepTraffic> plain = DecodeTraffic(folder.path(), request);
    request.sampling.repetition_penalty = 1.2f;
    request.sampling.frequency_penalty = 0.3f;
    const std::vector<StepTraffic> penalised = DecodeTraffic(folder.path(), request);
    ASSERT_EQ(penalised.size(), plain.size());
    ASSERT_GE(plain.size(), 9u);
    for (size_t i = 0; i < 9; ++i) {
      const StepTraffic expected = {.bytes = plain[i].bytes + 64,  // four words and their places, rounded up
                                    .scattered = plain[i].scattered + 4,
                                    .fences = plain[i].fences};
      EXPECT_EQ(penalised[i], expected) << prompt_tokens << " tokens, step " << i;
    }
  }
}

TEST(AdjustTables, SayWhatASlotLacks) {
  EngineLimits limits = SmallLimits(10);
  limits.max_sequences = 2;
  AdjustTables tables(limits, /*vocab_size=*/6);
  EXPECT_EQ(tables.entries(), 12);
  EXPECT_EQ(tables.FirstEntry(1), 6);

  Request request = MakeRequest("r", 0, 10);
  request.prompt = {3, 4, 3};
  request.sampling.repetition_penalty = 1.2f;
  request.stopping.min_tokens = 3;
  request.stopping.stop_token_ids = {5};
  SamplingHistory history(request, {});
  Sequence sequence;
  sequence.request = &request;
  PlacedSequence::SlotOf(sequence) = 1;
  EXPECT_EQ(tables.Update(sequence, history), Change::kAll) << "nobody's slot";
  EXPECT_EQ(tables.Update(sequence, history), Change::kNone) << "as after a step that was sat out";
  history.Append(1);
  EXPECT_EQ(tables.ChangeFor(sequence, history), Change::kOneEntry);
  EXPECT_EQ(tables.Update(sequence, history), Change::kOneEntry);
  EXPECT_EQ(history.adjusts()[static_cast<size_t>(history.last_change())].token, 1);
  history.Append(3);
  EXPECT_EQ(tables.Update(sequence, history), Change::kOneEntry);
  EXPECT_EQ(history.last_change(), 0) << "entries stay where they are";
  history.Append(3);
  EXPECT_EQ(tables.Update(sequence, history), Change::kAll) << "the bans ended";
  history.Append(0);
  history.Append(0);
  EXPECT_EQ(tables.Update(sequence, history), Change::kAll) << "two tokens";

  Sequence sibling = sequence;
  sibling.choice = 1;
  EXPECT_EQ(tables.Update(sibling, history), Change::kAll);
  EXPECT_EQ(tables.Update(sequence, history), Change::kAll);
  PlacedSequence::SlotOf(sequence) = 0;
  EXPECT_EQ(tables.Update(sequence, history), Change::kAll);

  SamplingHistory of_another_engine(request, {});  // which has come as early, and as little far
  SamplingHistory of_this(request, {});
  EXPECT_EQ(tables.Update(sequence, of_another_engine), Change::kAll);
  EXPECT_EQ(tables.Update(sequence, of_this), Change::kAll);

  AdjustTables narrow(limits, /*vocab_size=*/3);
  EXPECT_FALSE(narrow.HasRoom(history));
  EXPECT_EQ(narrow.Update(sequence, history), Change::kNoRoom);
}

TEST(AdjustTables, TakeAHundredAndTwentyEightKibibytesASlotAtMost) {
  EngineLimits limits = SmallLimits(10);
  limits.max_sequences = 512;
  EXPECT_EQ(AdjustTables(limits, 131072).bytes(), int64_t{512} * 128 * 1024);
  EXPECT_EQ(AdjustTables(limits, 1000).bytes(), int64_t{512} * 1000 * 16);
}

}  // namespace
}  // namespace tramontane
