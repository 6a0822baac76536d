// The whole steps that bench/gpu measures, as far as they go without a GPU: which rows there are, what fits,
// and a small model of the same kind on the CPU and on the emulator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu/random_weights.h"
#include "bench/gpu/whole_steps.h"
#include "kernels/backends/cpu_backend.h"
#include "models/memory_plan.h"
#include "tests/support/cuda_device.h"
#include "tests/support/temp_folder.h"

namespace tramontane::gpu {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(WholeStepsTest, EveryStreamCountMeetsEveryContextAndTheFewestTokensComeFirst) {
  std::set<std::string> names;
  int64_t before = 0;
  for (const Work& work : AllWork()) {
    EXPECT_GE(work.PromptTokens(), before) << NameOf(work);
    before = work.PromptTokens();
    names.insert(NameOf(work));
  }
  std::set<std::string> wanted = {"prefill, 128", "prefill, 2k", "prefill, 8k", "prefill, 32k"};
  for (const char* streams : {"1", "8", "32", "64", "128", "256"}) {
    for (const char* context : {"1k", "8k", "32k"})
      wanted.insert(std::string("decode, ") + streams + " x " + context);
  }
  EXPECT_EQ(names, wanted);
  EXPECT_EQ(AllWork().size(), wanted.size());
  for (const Work& work : ShortWork()) EXPECT_EQ(names.count(NameOf(work)), 1U) << NameOf(work);
}

EngineLimits Limits() {
  EngineLimits limits;
  limits.max_step_tokens = 2048;
  limits.max_sequences = 256;
  limits.steps_in_flight = 2;
  return limits;
}

KvLayout Layout(int32_t window) {
  return MakeKvLayout(std::vector<int32_t>(32, window),
                      {.element = DType::kBf16, .kv_heads = 8, .head_dim = 128, .page_size = 16});
}

TEST(WholeStepsTest, UnderAWindowARowHoldsTheWindowAndThePromptsPartWayTheirChunks) {
  const StepCounts counts;
  // 32k and 144 tokens behind it, of 16 each.
  EXPECT_EQ(PagesOf({64, 32768}, Layout(0), Limits(), counts), 64 * 2057);
  // (4096 - 1 + 2 * 16) / 16 and one more; of four prompts steps of 2048 in place of 16.
  EXPECT_EQ(PagesOf({64, 32768}, Layout(4096), Limits(), counts), 64 * 259 + 4 * (513 - 259));
  EXPECT_EQ(PagesOf({64, 1024}, Layout(4096), Limits(), counts),
            PagesOf({64, 1024}, Layout(0), Limits(), counts));
}

StepBounds Bounds() {
  return {.shape = kMistral7B,
          .window = 4096,
          .weight_bytes = 2.0 * static_cast<double>(kMistral7B.Weights()),
          .bytes_per_second = 3e12,
          .flops_per_second = 1e15};
}

TEST(WholeStepsTest, BoundsAreThoseOfMistral) {
  EXPECT_EQ(kMistral7B.Weights(), 7'110'393'856);  // all but the embedding and the norms
  EXPECT_EQ(kMistral7B.KvBytesOfToken(), 128 << 10);
  EXPECT_DOUBLE_EQ(Bounds().Of({8, 1024}).amount, 2.0 * 7'110'393'856 + 8 * 1025.0 * (128 << 10));
  EXPECT_DOUBLE_EQ(Bounds().Of({8, 32768}).amount, 2.0 * 7'110'393'856 + 8 * 4096.0 * (128 << 10));
  EXPECT_EQ(Bounds().Of({0, 128}).unit, "bytes") << "the weights take longer than 128 tokens' products";
  EXPECT_EQ(Bounds().Of({0, 2048}).unit, "FLOP");
}

// max(weight bytes / bandwidth, FLOP of the products / peak) + bytes of keys and values / bandwidth.
TEST(WholeStepsTest, OfManySequencesTheProductsTakeLongerThanTheWeightsAndTheKeysComeOnTop) {
  StepBounds bounds = Bounds();
  bounds.bytes_per_second = 4.3e12;
  const double flops = 256 * 2.0 * 7'110'393'856, key_bytes = 256 * 1025.0 * (128 << 10);
  const Bound products = bounds.Of({256, 1024});
  EXPECT_EQ(products.unit, "FLOP");
  EXPECT_DOUBLE_EQ(products.amount, flops);
  EXPECT_DOUBLE_EQ(products.bytes_after, key_bytes);
  EXPECT_DOUBLE_EQ(products.seconds(), flops / 1e15 + key_bytes / 4.3e12);
  EXPECT_GT(flops / 1e15, bounds.weight_bytes / 4.3e12);
  // Of half as many the weights do.
  EXPECT_EQ(bounds.Of({128, 1024}).unit, "bytes");
  EXPECT_DOUBLE_EQ(bounds.Of({128, 1024}).seconds(),
                   (bounds.weight_bytes + 128 * 1025.0 * (128 << 10)) / 4.3e12);
  // In fewer bits they are read sooner.
  bounds.weight_bytes /= 4;
  EXPECT_EQ(bounds.Of({128, 1024}).unit, "FLOP");
  EXPECT_EQ(bounds.Of({32, 1024}).unit, "bytes");
}

TEST(WholeStepsTest, WhatDoesNotFitIsLeftOutAndWhyIsSaid) {
  WorkPlan plan(Bounds(), StepCounts());
  const Work large = {256, 32768}, small = {1, 1024};
  EXPECT_EQ(plan.WhyNot(small, 65, 1000, 100), "");
  EXPECT_EQ(plan.WhyNot(large, 66000, 32000, 1e9), "decode, 256 x 32k (66000 pages of 32000)");
  EXPECT_THAT(plan.WhyNot(large, 66000, 70000, 100), StartsWith("decode, 256 x 32k (some "));
  EXPECT_THAT(plan.WhyNot(large, 66000, 70000, 100), HasSubstr(" s of 100 s left)"));
  EXPECT_THAT(plan.WhyNot(small, 65, 1000, -3), HasSubstr(" s of none left)"));
}

TEST(WholeStepsTest, WhatARowWouldTakeFollowsFromTheRowsBeforeIt) {
  WorkPlan plan(Bounds(), StepCounts());
  const Work prompt = {0, 2048}, decode = {8, 8192};
  const double careful = plan.SecondsFor(prompt);
  plan.Measured({0, 8192}, 2 * Bounds().Of({0, 8192}).seconds());  // half of the bound
  EXPECT_LT(plan.SecondsFor(prompt), careful);
  EXPECT_NEAR(plan.SecondsFor(prompt), 6 * 2 * Bounds().Of(prompt).seconds(), 1e-9);
  plan.Measured({1, 1024}, 4 * Bounds().Of({1, 1024}).seconds());
  EXPECT_NEAR(plan.SecondsFor(decode),
              8 * 2 * Bounds().Of({0, 8192}).seconds() + 144 * 4 * Bounds().Of(decode).seconds(), 1e-9);
}

TEST(WholeStepsTest, ADeviceWhoseClockNobodyTellsIsBoundByItsMemory) {
  StepBounds bounds = Bounds();
  bounds.flops_per_second = 0;
  EXPECT_EQ(bounds.Of({0, 32768}).unit, "bytes");
  EXPECT_EQ(bounds.Of({256, 1024}).unit, "bytes");
  EXPECT_EQ(ArithmeticBound(1e12, 0).seconds(), 0.0);
  WorkPlan plan(bounds, StepCounts());
  plan.Measured({0, 128}, 0.01);
  EXPECT_EQ(plan.WhyNot({0, 32768}, 1, 2, 60), "");
}

// ---- a small model of the kind

constexpr StepShape kSmall = {
    .hidden = 64, .layers = 2, .heads = 2, .kv_heads = 1, .head_dim = 32, .intermediate = 128, .vocab = 96};

// What a backend says of the recordings that it made is within the plan of memory.
void ExpectLaunchesAsPlanned(const std::string& remarks, const EngineLimits& limits) {
  long long recordings = 0, launches = 0;
  ASSERT_EQ(std::sscanf(remarks.c_str(), "%lld recordings of %lld launches", &recordings, &launches), 2)
      << remarks;
  const std::ptrdiff_t sizes = limits.recorded_steps();
  EXPECT_EQ(recordings, sizes + std::ssize(limits.RowsToRecord())) << "forward passes and rounds of samples";
  EXPECT_LE(launches, sizes * (kSmall.layers * kLaunchesOfLayer + kLaunchesOfStep));
  EXPECT_GE(launches, sizes * kSmall.layers * 5) << "of a layer five products and ops at least";
}

// Measures the rows in a pool that has no more pages than they say.
void Measure(BackendPtr backend, int32_t window, const std::vector<Work>& rows, const StepCounts& counts,
             const RandomWeights::Fill& fill = nullptr, const Format& matrices = DType::kBf16) {
  const TempFolder folder;
  ASSERT_TRUE(WriteStepModel(folder.path(), kSmall, window, 512));
  BackendEngine::Options options;
  EngineLimits& limits = options.limits;
  limits.context = 512;
  limits.page_size = 8;
  limits.max_step_tokens = 32;
  limits.max_sequences = 4;
  limits.steps_in_flight = backend->info().asynchronous != 0 ? 2 : 1;
  limits.lane_policy = LanePolicy::kPrefillFirst;
  limits.prefix_cache = false;
  const KvLayout layout =
      MakeKvLayout(std::vector<int32_t>(2, window),
                   {.element = DType::kBf16, .kv_heads = 1, .head_dim = 32, .page_size = limits.page_size});
  limits.pool_pages = layout.PagesForSequence(limits.context, 2 * limits.max_step_tokens);
  for (const Work& work : rows)
    limits.pool_pages = std::max(limits.pool_pages, PagesOf(work, layout, limits, counts));
  options.recorded = true;
  auto* const weights = new RandomWeights(std::move(backend), 0.1f, matrices, fill);
  BackendEngine engine(BackendPtr(weights), folder.path(), options);
  if (weights->info().records_steps != 0) ExpectLaunchesAsPlanned(weights->remarks(), limits);
  for (const Work& work : rows) {
    const int64_t before = engine.engine().Load().output_tokens;
    EXPECT_GT(SecondsOf(engine, kSmall, work, counts), 0.0) << NameOf(work);
    const int64_t tokens = work.sequences > 0 ? work.sequences * counts.OutputTokens() : 6;
    EXPECT_EQ(engine.engine().Load().output_tokens - before, tokens) << NameOf(work);
    EXPECT_EQ(engine.engine().Load().held_pages, 0);
    EXPECT_EQ(engine.engine().Load().failed_rows, 0);
  }
}

TEST(WholeStepsTest, EveryRowIsMeasuredInThePagesThatItSays) {
  for (const int32_t window : {0, 64}) {
    SCOPED_TRACE(window);
    Measure(MakeCpuBackend({.threads = 1, .variant = "portable"}).value(), window,
            {{1, 128}, {4, 200}, {0, 20}, {0, 200}, {3, 140}}, StepCounts());
  }
}

// Which makes its weights itself: each number once, from seeds of their own, and no row is asked for.
TEST(WholeStepsTest, StepsAreReplayedOnTheBackendOfAGpu) {
  UseThreadOrder(ThreadOrder::kForward);
  int64_t numbers = 0;
  std::multiset<uint64_t> seeds;
  Measure(MakeCudaTestBackend(), 24, {{1, 40}, {3, 40}, {0, 20}}, {.warm_ups = 1, .timed = 8},
          [&](const FillNormalParams& params) {
            numbers += params.count;
            seeds.insert(params.seed);
            EXPECT_EQ(params.scale, 0.1f);
            EXPECT_EQ(LaunchFillNormal(params, nullptr), 0);
          });
  EXPECT_EQ(numbers, kSmall.Weights() + kSmall.vocab * kSmall.hidden);
  EXPECT_EQ(std::set<uint64_t>(seeds.begin(), seeds.end()).size(), seeds.size());
}

// Of which the device fills the embedding alone; rows here are narrower than a group.
TEST(WholeStepsTest, InFewerBitsStepsGoOverTheSameBackends) {
  UseThreadOrder(ThreadOrder::kForward);
  for (const Format format : {Format(DType::kQ4_0), Format(DType::kInt4), Format(DType::kFp8E4M3)}) {
    SCOPED_TRACE(FormatName(format));
    Measure(MakeCpuBackend({.threads = 1, .variant = "portable"}).value(), 24, {{3, 40}, {0, 20}},
            {.warm_ups = 1, .timed = 8}, nullptr, format);
    int64_t numbers = 0;
    Measure(
        MakeCudaTestBackend(), 24, {{3, 40}, {0, 20}}, {.warm_ups = 1, .timed = 8},
        [&](const FillNormalParams& params) {
          numbers += params.count;
          EXPECT_EQ(LaunchFillNormal(params, nullptr), 0);
        },
        format);
    EXPECT_EQ(numbers, kSmall.vocab * kSmall.hidden);
  }
}

// Rows of two parts, read back by embedding them.
TEST(WholeStepsTest, APackedWeightHoldsWhatTheDeviceWasFilledWith) {
  UseThreadOrder(ThreadOrder::kForward);
  constexpr int64_t kWidth = 64, kRows = 48;
  std::vector<uint16_t> filled;
  const BackendPtr backend(
      new RandomWeights(MakeCudaTestBackend(), 0.5f, DType::kBf16, [&](const FillNormalParams& params) {
        EXPECT_EQ(LaunchFillNormal(params, nullptr), 0);
        filled.resize(static_cast<size_t>(params.count));
        CopyFromDevice(filled.data(), params.out, filled.size() * sizeof(uint16_t));
      }));
  const WeightRows parts[] = {{.rows = 16, .row_stride = kWidth}, {.rows = 32, .row_stride = kWidth}};
  WeightHandle table;
  ASSERT_EQ(backend->PackLinear({.parts = parts, .part_count = 2, .in_features = kWidth}, &table),
            OpCode::kOk);
  ASSERT_EQ(filled.size(), static_cast<size_t>(kRows * kWidth));
  std::vector<int32_t> every_row(kRows);
  std::iota(every_row.begin(), every_row.end(), 0);
  const DeviceArray<int32_t> ids(every_row);
  const DeviceArray<uint16_t> out(std::vector<uint16_t>(filled.size()));
  ASSERT_EQ(backend->Embed({.token_ids = ids.data(),
                            .tokens = kRows,
                            .table = table,
                            .out = MakeTensor(out.data(), DType::kBf16, kRows, kWidth)}),
            OpCode::kOk);
  ASSERT_EQ(backend->WaitFence(backend->RecordFence()), OpCode::kOk);
  EXPECT_EQ(out.Get(), filled);
  backend->FreeWeight(table);
}

}  // namespace
}  // namespace tramontane::gpu
