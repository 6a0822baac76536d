#include "engine/run/backend_model_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "engine/engine_host.h"
#include "kernels/backends/cpu_backend.h"
#include "models/decoder.h"
#include "models/memory_plan.h"
#include "tests/support/counting_backend.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/load_folder.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

constexpr int64_t kMiB = 1 << 20;

// The most rows that were asked for at once.
class LogitRowsSeen final : public Model {
 public:
  LogitRowsSeen(std::unique_ptr<Model> inner, int64_t& most) : inner_(std::move(inner)), most_(most) {}

  const ModelConfig& config() const override { return inner_->config(); }
  const KvLayout& kv_layout() const override { return inner_->kv_layout(); }
  Status Reserve(int32_t max_tokens, int32_t max_sequences, int32_t max_logit_rows) override {
    return inner_->Reserve(max_tokens, max_sequences, max_logit_rows);
  }
  OpCode Forward(const ForwardBatch& batch, std::byte* pool) override { return inner_->Forward(batch, pool); }
  OpCode Logits(const int32_t* rows, int32_t count, const Tensor& logits) override {
    most_ = std::max<int64_t>(most_, count);
    return inner_->Logits(rows, count, logits);
  }

 private:
  const std::unique_ptr<Model> inner_;
  int64_t& most_;
};

// Every token of the vocabulary adjusted in every row: more than one upload can carry. The larger vocabulary
// is more than a slot has room for; of that one upload carries one row, or two.
struct Vocabulary {
  int32_t size;
  int32_t logit_rows;
};
class ManyAdjusts : public testing::TestWithParam<Vocabulary> {};
INSTANTIATE_TEST_SUITE_P(Vocabularies, ManyAdjusts,
                         testing::Values(Vocabulary{2000, 1}, Vocabulary{8200, 1}, Vocabulary{8200, 17}),
                         [](const auto& info) { return std::to_string(info.index); });

TEST_P(ManyAdjusts, OfMoreRowsThanOneUploadCarriesGiveTheSameTokens) {
  TinyModel model;
  model.vocab = GetParam().size;
  model.Randomise(2);
  const TempFolder folder;
  model.WriteMistral(folder);
  CpuEngine::Options options;
  options.limits = SmallLimits(400);
  options.limits.max_logit_rows = GetParam().logit_rows;
  options.limits.max_logit_bias = model.vocab;
  Request request = MakeRequest("r", 10, 12);
  request.sampling.frequency_penalty = 0.5f;
  request.output.logprobs = 2;
  const auto tops_of = [](const StreamReader& reader) {
    std::vector<float> tops;
    for (const TokenInfo& info : reader.choice().logprobs) {
      for (const TokenLogprob& top : info.top) tops.push_back(top.logprob);
    }
    return tops;
  };

  std::vector<std::vector<int32_t>> alone;
  std::vector<std::vector<float>> alone_tops;
  CpuEngine one(folder.path(), options);
  CpuEngine crowd(folder.path(), options);
  std::vector<std::unique_ptr<StreamReader>> readers;
  std::vector<StreamReader*> all;
  for (int i = 0; i < 5; ++i) {
    request.id = "r" + std::to_string(i);
    request.prompt[0] = 3 + i;
    request.sampling.logit_bias.clear();
    for (int32_t t = 0; t < model.vocab; ++t)
      request.sampling.logit_bias.push_back({t, t % 5 == i ? 4.0f : 0.0f});
    auto reader = one.Submit(request);
    one.RunToEnd({reader.get()});
    alone.push_back(reader->choice().ids);
    alone_tops.push_back(tops_of(*reader));
    readers.push_back(crowd.Submit(request));
    all.push_back(readers.back().get());
  }
  crowd.RunToEnd(all);
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(all[i]->choice().ids, alone[i]);
    EXPECT_EQ(tops_of(*all[i]), alone_tops[i]);
    EXPECT_EQ(alone_tops[i].size(), 24u);
  }
}

TEST(BackendModelRunner, PromptScoresInSlicesEqualScoresAtOnce) {
  TinyModel model;
  model.window = {0, 12};
  model.Randomise(4);
  const TempFolder folder;
  model.WriteMistral(folder);
  Request request = MakeRequest("r", 50, 3);
  request.output.prompt_logprobs = 20;
  request.output.logprobs = 20;
  std::vector<std::vector<TokenInfo>> scores;
  for (const int32_t rows : {64, 7, 1}) {
    CpuEngine::Options options;
    options.limits = SmallLimits(400);
    options.limits.max_logit_rows = rows;
    options.limits.max_step_tokens = 64;
    CpuEngine test(folder.path(), options);
    auto reader = test.Submit(request);
    test.RunToEnd({reader.get()});
    scores.push_back(reader->started().at(0).prompt_logprobs);
  }
  ASSERT_EQ(scores[0].size(), 49u);
  for (const auto& sliced : scores) {
    ASSERT_EQ(sliced.size(), scores[0].size());
    for (size_t i = 0; i < sliced.size(); ++i) {
      EXPECT_EQ(sliced[i].token, request.prompt[i + 1]);
      EXPECT_EQ(sliced[i].logprob, scores[0][i].logprob);
      EXPECT_EQ(sliced[i].rank, scores[0][i].rank);
      ASSERT_EQ(sliced[i].top.size(), 20u);
      EXPECT_LT(sliced[i].top[0].logprob, 0.0f);
      EXPECT_EQ(sliced[i].top[19].logprob, scores[0][i].top[19].logprob);
    }
  }
}

TEST(BackendModelRunner, ARecordedDecodeStepIsTwoReplays) {
  TinyModel model;
  model.window = {0, 12};
  model.Randomise(4);
  const TempFolder folder;
  model.WriteMistral(folder);
  std::vector<std::vector<int32_t>> ids;
  struct Case {
    bool recorded;
    int32_t most;
  };
  for (const auto& [recorded, most] :
       {Case{false, kMaxRecordedSteps}, {true, kMaxRecordedSteps}, {true, 0}}) {
    BackendEngine::Options options;
    options.limits = SmallLimits(400);
    options.limits.steps_in_flight = 2;
    options.limits.max_recorded_steps = most;
    options.recorded = recorded;
    BackendPtr made = MakeDelayedBackend(MakeCpuBackend({.threads = 1, .variant = ""}).value(),
                                         DelayedBackend::Runs::kWhenWaitedFor);
    const auto& backend = *static_cast<DelayedBackend*>(made.get());
    BackendEngine test(std::move(made), folder.path(), options);
    auto reader = test.Submit(MakeRequest("r", 30, 11));
    test.RunToEnd({reader.get()});
    ids.push_back(reader->choice().ids);
    EXPECT_EQ(backend.replays, recorded && most > 0 ? 2 * 10 : 0) << "the first token comes with the prompt";
  }
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_EQ(ids[0], ids[2]);
}

// Whether moves begin behind what the host has waited for, and behind copies of pages, and behind no more;
// and whether what looks at pages awaits them.
class MovesWatch final : public CountingBackend {
 public:
  using CountingBackend::CountingBackend;
  int64_t batches = 0;
  int64_t beside_a_step = 0;  // that need not be behind all of a step in flight
  int64_t behind_copies = 0;  // that are behind its first op, which copies pages

  uint64_t RecordFence() override { return recorded_ = CountingBackend::RecordFence(); }
  OpCode WaitFence(uint64_t fence) override {
    waited_for_ = std::max(waited_for_, fence);
    return CountingBackend::WaitFence(fence);
  }
  OpCode MovePages(const MovePagesParams& params) override {
    EXPECT_EQ(params.after, std::max(waited_for_, behind_copies_));
    ++batches;
    if (recorded_ > params.after) ++beside_a_step;
    if (behind_copies_ > waited_for_) ++behind_copies;
    unawaited_ = true;
    return CountingBackend::MovePages(params);
  }
  OpCode AwaitMoves() override {
    unawaited_ = false;
    return CountingBackend::AwaitMoves();
  }
  OpCode RopeAppend(const RopeAppendParams& params) override {
    EXPECT_FALSE(unawaited_);
    return CountingBackend::RopeAppend(params);
  }
  OpCode Attention(const AttentionParams& params) override {
    EXPECT_FALSE(unawaited_);
    return CountingBackend::Attention(params);
  }
  OpCode CopyPages(const CopyPagesParams& params) override {
    EXPECT_FALSE(unawaited_);
    behind_copies_ = recorded_ + 1;
    return CountingBackend::CopyPages(params);
  }

 private:
  uint64_t recorded_ = 0;
  uint64_t waited_for_ = 0;
  uint64_t behind_copies_ = 0;  // the first fence
  bool unawaited_ = false;
};

// A few texts at a time in a pool that holds two of them, each asked for twice.
TEST(BackendModelRunner, MovesPagesBesideTheStepInFlightAndHasTheNextOneAwaitThem) {
  TinyModel model;
  model.window = {0, 12};
  model.Randomise(4);
  const TempFolder folder;
  model.WriteMistral(folder);
  const BackendPtr delayed = MakeDelayedBackend(MakeCpuBackend({.threads = 1, .variant = ""}).value(),
                                                DelayedBackend::Runs::kWhenWaitedFor);
  MovesWatch watch(*delayed);
  BackendEngine::Options options;
  options.limits = SmallLimits(48);
  options.limits.steps_in_flight = 2;
  options.tier.host_pages = 400;
  std::vector<std::vector<int32_t>> ids;
  {
    BackendEngine test(BackendPtr(&watch), folder.path(), options);
    for (int round = 0; round < 2; ++round) {
      std::vector<std::unique_ptr<StreamReader>> readers;
      std::vector<StreamReader*> all;
      for (uint32_t text = 0; text < 8; ++text) {
        Request request = MakeRequest("r" + std::to_string(text), 30, 14, text);
        request.sampling.presence_penalty = 0.5f;
        if (text % 3 == 0) request.choices = 2;  // whose pages are copied
        readers.push_back(test.Submit(request));
        all.push_back(readers.back().get());
      }
      test.RunToEnd(all);
      for (const auto& reader : readers) ids.push_back(reader->choice().ids);
    }
  }
  EXPECT_GT(watch.batches, 0);
  EXPECT_GT(watch.beside_a_step, 0);
  EXPECT_GT(watch.behind_copies, 0);
  for (size_t text = 0; text < 8; ++text) EXPECT_EQ(ids[text], ids[text + 8]) << text;
}

TEST(BackendModelRunner, ReadsAndWritesPagesBehindThoseThatMove) {
  TinyModel model;
  model.Randomise(4);
  const TempFolder folder;
  model.WriteMistral(folder);
  const BackendPtr backend = MakeDelayedBackend(MakeCpuBackend({.threads = 1, .variant = ""}).value(),
                                                DelayedBackend::Runs::kWhenWaitedFor);
  LoadOptions load;
  load.kv.page_size = 4;
  auto loaded = LoadFolder(folder.path(), *backend, load);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EngineLimits limits = SmallLimits(8);
  limits.steps_in_flight = 2;
  const auto page_bytes = static_cast<size_t>((*loaded)->kv_layout().page_bytes());
  auto* pool = static_cast<std::byte*>(backend->Allocate(static_cast<int64_t>(8 * page_bytes)));
  {
    const auto runner = BackendModelRunner::Create(*backend, **loaded, limits, pool).value();
    std::vector<std::byte> in(page_bytes, std::byte{5}), written(page_bytes, std::byte{7}), read(page_bytes);
    const PageMove comes[] = {{.way = PageMove::Way::kIn, .page = 3, .image = in.data()}};
    const PageImage to_read[] = {{.page = 3, .bytes = read.data()}};
    ASSERT_TRUE(runner->MovePages(comes).ok());
    ASSERT_TRUE(runner->ReadPages(to_read).ok());
    EXPECT_EQ(read, in);

    const PageImage to_write[] = {{.page = 3, .bytes = written.data()}};
    ASSERT_TRUE(runner->MovePages(comes).ok());
    ASSERT_TRUE(runner->WritePages(to_write).ok());
    ASSERT_TRUE(runner->ReadPages(to_read).ok());
    EXPECT_EQ(read, written);
  }
  backend->Free(pool);
}

// The younger one has no policy, and is beside the other before and after that one sees sinks.
TEST(BackendModelRunner, ADecodeStepInWhichARowSeesSinksIsTwoReplaysToo) {
  TinyModel model;
  model.window = {0, 12};
  model.Randomise(4);
  const TempFolder folder;
  model.WriteMistral(folder);
  Request endless = MakeRequest("endless", 30, 20, 5);
  endless.context_policy = {.type = ContextPolicyType::kShift, .n_ctx = 36, .n_keep = 3, .n_discard = 2};
  std::vector<std::vector<int32_t>> ids;
  for (const bool recorded : {false, true}) {
    BackendEngine::Options options;
    options.limits = SmallLimits(400);
    options.limits.steps_in_flight = 2;
    options.limits.recorded_rows = {2, 3, 4};  // of three rows only where none sees sinks
    options.recorded = recorded;
    int64_t steps = 0, mixed_steps = 0;
    options.on_forward = [&](const StepPlan& plan) {
      if (plan.lane != Lane::kDecode) return;
      ++steps;
      mixed_steps += plan.rows.size() == 3 && IsPlain(plan.rows[1]) && SeesSinks(plan.rows[2]) ? 1 : 0;
    };
    BackendPtr made = MakeDelayedBackend(MakeCpuBackend({.threads = 1, .variant = ""}).value(),
                                         DelayedBackend::Runs::kWhenWaitedFor);
    const auto& backend = *static_cast<DelayedBackend*>(made.get());
    BackendEngine test(std::move(made), folder.path(), options);
    auto endless_reader = test.Submit(endless);
    auto reader = test.Submit(MakeRequest("plain", 9, 20));
    auto other_reader = test.Submit(MakeRequest("other", 7, 20));
    test.RunToEnd({endless_reader.get(), reader.get(), other_reader.get()});
    ids.push_back(endless_reader->choice().ids);
    ids.push_back(reader->choice().ids);
    EXPECT_GT(mixed_steps, 5);
    EXPECT_GT(steps, mixed_steps);
    EXPECT_EQ(backend.replays, recorded ? 2 * steps : 0);
  }
  EXPECT_EQ(ids[0], ids[2]);
  EXPECT_EQ(ids[1], ids[3]);
}

// Three widths: a step takes the narrowest that is wide enough, and one of more rows is queued op by op.
TEST(BackendModelRunner, AStepReplaysTheNarrowestRecordingThatIsWideEnough) {
  TinyModel model;
  model.Randomise(4);
  const TempFolder folder;
  model.WriteMistral(folder);
  for (const int32_t choices : {1, 2, 3, 4, 5}) {
    BackendEngine::Options options;
    options.limits = SmallLimits(400);
    options.limits.steps_in_flight = 2;
    options.limits.recorded_rows = {1, 3, 4};
    options.limits.max_logit_rows = 0;
    options.limits.max_choices = 5;
    options.recorded = true;
    int64_t narrow_steps = 0;
    int64_t wide_steps = 0;
    options.on_forward = [&](const StepPlan& plan) {
      if (plan.lane == Lane::kDecode) ++(plan.rows.size() <= 4 ? narrow_steps : wide_steps);
    };
    int64_t logit_rows = 0;  // of the widest product with the LM head
    options.wrap_model = [&](std::unique_ptr<Model> inner) {
      return std::make_unique<LogitRowsSeen>(std::move(inner), logit_rows);
    };
    BackendPtr made = MakeDelayedBackend(MakeCpuBackend({.threads = 1, .variant = ""}).value(),
                                         DelayedBackend::Runs::kWhenWaitedFor);
    const auto& backend = *static_cast<DelayedBackend*>(made.get());
    BackendEngine test(std::move(made), folder.path(), options);
    EXPECT_EQ(std::exchange(logit_rows, 0), 4) << "recorded over the widest";
    Request request = MakeRequest("r", 30, 11);
    request.choices = choices;
    auto reader = test.Submit(request);
    test.RunToEnd({reader.get()});
    EXPECT_EQ(backend.replays, 2 * narrow_steps) << choices;
    EXPECT_EQ(wide_steps > 0, choices == 5);
    EXPECT_EQ(logit_rows, choices) << "of the prompt, and of steps that are not recorded";
  }
}

TEST(EngineLimits, RowsToRecordArePowersOfTwoThenEqualSteps) {
  const auto rows = [](int32_t max_sequences) {
    EngineLimits limits;
    limits.max_sequences = max_sequences;
    return limits.RowsToRecord();
  };
  using Rows = std::vector<int32_t>;
  EXPECT_EQ(rows(1), (Rows{1}));
  EXPECT_EQ(rows(3), (Rows{1, 2, 3}));
  EXPECT_EQ(rows(8), (Rows{1, 2, 4, 8}));
  EXPECT_EQ(rows(20), (Rows{1, 2, 4, 8, 16, 20}));
  const Rows of_130 = rows(130);
  EXPECT_EQ(of_130[of_130.size() - 2], 128) << "130 rows run as 130, 121 as 128";
  EXPECT_EQ(of_130.back(), 130);
  for (int32_t most = 1; most <= 4096; ++most) {
    const Rows all = rows(most);
    ASSERT_LE(std::ssize(all), kMaxRecordedSteps) << most;
    ASSERT_EQ(all.back(), most);
    EngineLimits limits = SmallLimits(10);
    limits.max_sequences = most;
    limits.max_choices = 1;
    limits.recorded_rows = all;
    ASSERT_TRUE(limits.Validate().ok()) << limits.Validate();
  }
}

TEST(EngineLimits, FewerRecordingsAreWiderApartAndThenTheNarrowest) {
  EngineLimits limits = SmallLimits(10);
  limits.max_sequences = 64;
  const auto within = [&](int32_t most) {
    limits.max_recorded_steps = most;
    EXPECT_TRUE(limits.Validate().ok()) << limits.Validate();
    return limits.RowsToRecord();
  };
  using Rows = std::vector<int32_t>;
  EXPECT_EQ(within(11), (Rows{1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64}));
  EXPECT_EQ(limits.RowsLeftOut(), Rows{});
  EXPECT_THAT(limits.ToString(), testing::Not(testing::HasSubstr("left out")));
  EXPECT_EQ(within(10), (Rows{1, 2, 4, 8, 16, 32, 48, 64}));
  EXPECT_EQ(limits.RowsLeftOut(), (Rows{24, 40, 56}));
  EXPECT_THAT(limits.ToString(), testing::HasSubstr("recorded_rows left out = 24 40 56: "));
  EXPECT_EQ(within(7), (Rows{1, 2, 4, 8, 16, 32, 64}));
  EXPECT_EQ(within(3), (Rows{1, 2, 4}));
  EXPECT_EQ(within(0), Rows{});
  EXPECT_THAT(limits.ToString(), testing::HasSubstr("recorded_rows = none: "));
  limits.recorded_rows = {3, 5, 60};
  EXPECT_EQ(within(2), (Rows{3, 5}));
  EXPECT_EQ(limits.RowsLeftOut(), Rows{60});
  limits.recorded_rows.clear();
  for (int32_t sequences = 1; sequences <= 600; ++sequences) {
    limits.max_sequences = sequences;
    limits.max_choices = 1;
    for (int32_t most = 0; most <= kMaxRecordedSteps; ++most) {
      limits.max_recorded_steps = most;
      ASSERT_LE(std::ssize(limits.RowsToRecord()), most);
      ASSERT_EQ(limits.RowsToRecord().empty(), most == 0);
    }
  }
}

TEST(EngineLimits, RowsToRecordWithSinksAreFewAndNoStepIsPaddedToMoreThanTwiceItsRows) {
  using Rows = std::vector<int32_t>;
  EngineLimits limits;
  limits.max_sequences = 64;
  EXPECT_EQ(limits.RowsToRecordWithSinks(), (Rows{1, 2, 4, 8, 16, 32, 64}));
  EXPECT_EQ(limits.recorded_steps(), 11 + 7);
  limits.recorded_rows = {1, 3, 4, 30};
  EXPECT_EQ(limits.RowsToRecordWithSinks(), (Rows{1, 3, 4, 30})) << "wider ones are far apart";
  limits.recorded_rows = {};
  for (int32_t most = 1; most <= 4096; ++most) {
    limits.max_sequences = most;
    const Rows with_sinks = limits.RowsToRecordWithSinks(), all = limits.RowsToRecord();
    ASSERT_LE(with_sinks.size(), 13u) << most;
    ASSERT_EQ(with_sinks.back(), most);
    ASSERT_TRUE(std::includes(all.begin(), all.end(), with_sinks.begin(), with_sinks.end())) << most;
    for (size_t i = 1; i < with_sinks.size(); ++i) ASSERT_LE(with_sinks[i], 2 * with_sinks[i - 1]) << most;
  }
}

TEST(EngineLimits, RecordedRowsOutOfOrderOrBoundsAreRefused) {
  EngineLimits limits = SmallLimits(10);  // 8 sequences
  limits.recorded_rows = {2, 2};
  EXPECT_EQ(limits.Validate().message(),
            "recorded_rows[1] is 2, the limits are 3 to max_sequences, which is 8");
  limits.recorded_rows = {0, 9};
  EXPECT_EQ(limits.Validate().message(),
            "recorded_rows[0] is 0, the limits are 1 to max_sequences, which is 8\n"
            "recorded_rows[1] is 9, the limits are 1 to max_sequences, which is 8");
}

TEST(EngineLimits, TheLmHeadTakesAllRowsOfADecodeStepAtOnce) {
  EngineLimits limits;
  for (const int32_t sequences : {1, 64, 256}) {
    limits.max_sequences = sequences;
    EXPECT_EQ(limits.logit_rows(), std::max(64, sequences));
  }
  limits.max_logit_rows = 7;
  EXPECT_EQ(limits.logit_rows(), 7);
}

TEST(EngineHostPlan, EqualsTheMemoryThatAServerTakes) {
  TinyModel tiny;
  tiny.window = {0, 12};
  tiny.Randomise(1);
  const TempFolder folder;
  tiny.WriteMistral(folder);
  const BackendPtr cpu = MakeCpuBackend({.threads = 1, .variant = ""}).value();
  CountingBackend counting(*cpu);
  EngineHostOptions options;
  options.memory_bytes = 16 * kMiB;
  options.limits = SmallLimits(0);
  options.limits.context = 0;

  OpenedModel opened = OpenModel(folder.path(), {.page_size = options.limits.page_size}).value();
  const EngineHostPlan plan = PlanEngineHost(opened, counting, options).value();
  EXPECT_EQ(counting.allocated + counting.packed + counting.reserved, 0) << "a plan allocates nothing";
  EXPECT_EQ(plan.limits.pool_pages, plan.memory.pool_pages);
  EXPECT_EQ(plan.limits.context, tiny.context);

  const std::unique_ptr<Model> model = LoadModel(std::move(opened), counting, nullptr).value();
  EXPECT_EQ(counting.allocated + counting.packed, plan.memory.weight_bytes);
  auto* pool = static_cast<std::byte*>(counting.Allocate(plan.limits.pool_pages * plan.layout.page_bytes()));
  counting.allocated_on_host = 0;  // the model's own is given back
  const auto runner = BackendModelRunner::Create(counting, *model, plan.limits, pool);
  ASSERT_TRUE(runner.ok()) << runner.status();
  const int64_t taken = counting.allocated + counting.packed + counting.reserved + counting.allocated_on_host;
  EXPECT_EQ(taken, plan.memory.weight_bytes + plan.memory.workspace_bytes +
                       plan.memory.pool_pages * plan.memory.page_bytes);
  EXPECT_LE(taken, options.memory_bytes);
  EXPECT_GT(taken, options.memory_bytes - plan.memory.page_bytes) << "no page's worth is left lying";
  counting.Free(pool);
}

TEST(EngineHostPlan, RecordedStepsTakeMemoryWhereABackendRecordsThem) {
  TinyModel tiny;
  tiny.Randomise(1);
  const TempFolder folder;
  tiny.WriteMistral(folder);
  const BackendPtr cpu = MakeCpuBackend({.threads = 1, .variant = ""}).value();
  const BackendPtr recording = MakeDelayedBackend(MakeCpuBackend({.threads = 1, .variant = ""}).value(),
                                                  DelayedBackend::Runs::kWhenWaitedFor);
  const OpenedModel opened = OpenModel(folder.path(), {}).value();
  EngineHostOptions options;
  options.memory_bytes = 64 * kMiB;
  options.limits.recorded_rows = {1};
  EXPECT_EQ(PlanEngineHost(opened, *cpu, options).value().memory.recording_bytes, 0);
  const MemoryPlan one = PlanEngineHost(opened, *recording, options).value().memory;
  options.limits.recorded_rows = {1, 2, 4};
  const MemoryPlan three = PlanEngineHost(opened, *recording, options).value().memory;
  EXPECT_EQ(one.recording_bytes, RecordingBytes(opened.config, 2)) << "with sinks once more";
  EXPECT_EQ(three.recording_bytes, RecordingBytes(opened.config, 6));
  EXPECT_EQ(one.kv_budget_bytes - three.kv_budget_bytes, three.recording_bytes - one.recording_bytes);
}

// A list that the memory holds no eighth for is shortened, down to none where it just holds a pool.
TEST(EngineHostPlan, RecordedStepsAreAsManyAsTheirShareOfTheMemoryHolds) {
  TinyModel tiny;
  tiny.Randomise(1);
  const TempFolder folder;
  tiny.WriteMistral(folder);
  const BackendPtr recording = MakeDelayedBackend(MakeCpuBackend({.threads = 1, .variant = ""}).value(),
                                                  DelayedBackend::Runs::kWhenWaitedFor);
  const OpenedModel opened = OpenModel(folder.path(), {}).value();
  const int64_t of_one = RecordingBytes(opened.config, 1);
  EngineHostOptions options;
  options.limits.max_sequences = 8;
  options.limits.max_choices = 1;
  options.memory_bytes = 256 * kMiB;
  const EngineHostPlan roomy = PlanEngineHost(opened, *recording, options).value();
  const std::vector<int32_t> all = {1, 2, 4, 8};
  EXPECT_EQ(roomy.limits.RowsToRecord(), all);
  EXPECT_EQ(roomy.limits.RowsToRecordWithSinks(), all);  // so each takes two forward passes
  EXPECT_EQ(roomy.limits.max_recording_bytes, 8 * of_one);
  const int64_t fixed = roomy.memory.weight_bytes + roomy.memory.workspace_bytes;
  for (int32_t fit = 0; fit <= 4; ++fit) {
    for (const int64_t more : {int64_t{0}, 16 * of_one - 1}) {
      options.memory_bytes = fixed + 16 * fit * of_one + more;
      if (fit == 0 && more == 0) options.memory_bytes += 2 * roomy.memory.page_bytes;
      const auto plan = PlanEngineHost(opened, *recording, options);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->limits.RowsToRecord(), std::vector<int32_t>(all.begin(), all.begin() + fit));
      EXPECT_EQ(plan->limits.RowsLeftOut(), std::vector<int32_t>(all.begin() + fit, all.end()));
      EXPECT_EQ(plan->memory.recording_bytes, 2 * fit * of_one);
      EXPECT_EQ(plan->memory.unrecorded_steps, 8 - 2 * fit);
      EXPECT_EQ(plan->memory.kv_budget_bytes, options.memory_bytes - fixed - 2 * fit * of_one);
    }
  }
  // Of 11 row counts, 7 of them twice, 17 forward passes would fit; where all steps between the row counts
  // are wider 8 are left, and 15 are paid for.
  options.memory_bytes = 256 * kMiB;
  options.limits.max_sequences = 64;
  options.limits.max_recording_bytes = 17 * of_one;
  const EngineHostPlan wider = PlanEngineHost(opened, *recording, options).value();
  EXPECT_EQ(wider.limits.RowsToRecord(), (std::vector<int32_t>{1, 2, 4, 8, 16, 32, 48, 64}));
  EXPECT_EQ(wider.memory.recording_bytes, 15 * of_one);
  EXPECT_EQ(wider.memory.unrecorded_steps, 3);
  options.limits.max_sequences = 8;
  options.limits.max_recording_bytes = 4 * of_one;
  EXPECT_EQ(PlanEngineHost(opened, *recording, options).value().limits.RowsToRecord(),
            (std::vector<int32_t>{1, 2}));
}

TEST(EngineHostPlan, ASmallPoolBoundsTheContext) {
  TinyModel tiny;  // no windows: 32 pages of 16 tokens are its context of 512
  tiny.Randomise(1);
  const TempFolder folder;
  tiny.WriteMistral(folder);
  const BackendPtr cpu = MakeCpuBackend({.threads = 1, .variant = ""}).value();
  const OpenedModel opened = OpenModel(folder.path(), {}).value();
  EngineHostOptions options;
  options.memory_bytes = 64 * kMiB;
  options.limits.pool_pages = 10;
  EXPECT_EQ(PlanEngineHost(opened, *cpu, options).value().limits.context, 160);
  options.limits.context = 100;
  EXPECT_EQ(PlanEngineHost(opened, *cpu, options).value().limits.context, 100);
}

// A window of 4096 in pages of 16 tokens needs 258 of them in chunks of a page, and 289 in steps of 512
// tokens: 270 pages hold the whole context, for whoever asks.
TEST(EngineHostPlan, WhatItSaysFitsIsWhatTheEngineServes) {
  TinyModel tiny;
  tiny.window.assign(static_cast<size_t>(tiny.layers), 4096);
  tiny.context = 32768;
  tiny.Randomise(1);
  const TempFolder folder;
  tiny.WriteMistral(folder);
  const BackendPtr cpu = MakeCpuBackend({.threads = 1, .variant = ""}).value();
  const OpenedModel opened = OpenModel(folder.path(), {.page_size = 16}).value();
  EngineHostOptions options;
  options.limits.max_step_tokens = 512;
  options.memory_bytes = 64 * kMiB;
  const MemoryPlan roomy = PlanEngineHost(opened, *cpu, options).value().memory;
  for (const int64_t pages : {270, 258, 257}) {
    options.memory_bytes = roomy.weight_bytes + roomy.workspace_bytes + pages * roomy.page_bytes;
    const EngineHostPlan plan = PlanEngineHost(opened, *cpu, options).value();
    ASSERT_EQ(plan.memory.pool_pages, pages);
    EXPECT_EQ(plan.limits.context, pages < 258 ? pages * 16 : 32768);
    EXPECT_EQ(plan.memory.pool_tokens, plan.limits.context) << pages << " pages";
    EXPECT_EQ(plan.memory.sequences_at_context, pages < 258 ? 0 : 1) << pages << " pages";
  }
}

// Whatever a caller asks for is checked before anything is computed from it.
TEST(EngineHostPlan, LimitsOutOfBoundsAreRefusedByName) {
  TinyModel tiny;
  tiny.Randomise(1);
  const TempFolder folder;
  tiny.WriteMistral(folder);
  const BackendPtr cpu = MakeCpuBackend({.threads = 1, .variant = ""}).value();
  for (const int32_t page_size : {0, -1, 1025}) {
    const Status refused = OpenModel(folder.path(), {.page_size = page_size}).status();
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.message(), "page_size is " + std::to_string(page_size) + ", the limits are 1 to 1024");
  }
  const OpenedModel opened = OpenModel(folder.path(), {}).value();
  EngineHostOptions options;
  options.memory_bytes = 64 * kMiB;
  options.limits.max_step_tokens = 0;
  options.limits.max_sequences = -5;
  const Status refused = PlanEngineHost(opened, *cpu, options).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("max_step_tokens is 0"), std::string::npos) << refused;
  EXPECT_NE(refused.message().find("max_sequences is -5"), std::string::npos) << refused;
}

TEST(EngineLimits, MoreStepsInFlightThanTheEngineHasAreRefused) {
  EngineLimits limits = SmallLimits(10);
  limits.steps_in_flight = 2;
  EXPECT_TRUE(limits.Validate().ok()) << limits.Validate();
  limits.steps_in_flight = 3;
  EXPECT_EQ(limits.Validate().message(), "steps_in_flight is 3, the limits are 1 to 2");
}

}  // namespace
}  // namespace tramontane
