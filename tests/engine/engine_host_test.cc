// The whole way with the embedded model: folder, memory plan, warm-up, thread, text.

#include "engine/engine_host.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backends/cpu_backend.h"
#include "models/weights.h"
#include "tests/models/tokenizer_test_model.h"
#include "tests/support/counting_backend.h"
#include "tests/support/in_process_engine.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

const char kBreeze[] = TRAMONTANE_SOURCE_DIR "/models/breeze/weights";
constexpr int64_t kMiB = 1 << 20;

class BreezeHost : public testing::Test {
 protected:
  BreezeHost() : BreezeHost(MakeCpuBackend({.threads = 2, .variant = ""}).value()) {}
  explicit BreezeHost(BackendPtr backend) : backend_(std::move(backend)) {
    options_.memory_bytes = 256 * kMiB;
    auto host = EngineHost::Start(OpenModel(kBreeze, {}).value(), *backend_, options_, clock_);
    TM_CHECK(host.ok(), "%s", host.status().ToString().c_str());
    host_ = *std::move(host);
  }

  Request Prompt(const std::string& id, const std::string& text, int64_t max_tokens) {
    Request request;
    request.id = id;
    request.prompt = {host_->tokenizer().bos_id()};
    const std::vector<int32_t> ids = host_->tokenizer().Encode(text).value();
    request.prompt.insert(request.prompt.end(), ids.begin(), ids.end());
    request.sampling.temperature = 0.0f;
    request.stopping.max_tokens = max_tokens;
    return request;
  }

  const SteadyClock clock_;
  BackendPtr backend_;
  EngineHostOptions options_;
  std::unique_ptr<EngineHost> host_;
};

TEST_F(BreezeHost, StreamsTextAndCountsNothingOfItsWarmUp) {
  EXPECT_EQ(host_->engine().Load().steps, 0);
  StreamReader reader(host_->engine(), Prompt("r", "Once upon a", 40));
  ASSERT_TRUE(reader.refused().ok()) << reader.refused();
  reader.WaitToEnd();
  ASSERT_TRUE(reader.status().ok()) << reader.status();
  const std::string text = reader.choice().text;
  EXPECT_EQ(text.front(), ' ') << "it goes on with the prompt's text: " << text;
  EXPECT_GT(text.size(), 40u);
  // The pieces that came one by one are the text of the ids together with the prompt's.
  std::vector<int32_t> ids = Prompt("r", "Once upon a", 1).prompt;
  ids.insert(ids.end(), reader.choice().ids.begin(), reader.choice().ids.end());
  EXPECT_EQ(host_->tokenizer().Decode(ids).value(), "Once upon a" + text);
}

// The warm-up's requests came to the same slots, and were each the first of their engine, too.
TEST_F(BreezeHost, TheFirstRequestHasItsPenaltiesBiasAndBansAsLaterOnesDo) {
  Request request = Prompt("first", "Once upon a time", 12);
  request.sampling.repetition_penalty = 1.3f;
  request.sampling.logit_bias = {{300, 50.0f}};
  request.stopping.min_tokens = 12;
  request.choices = 2;
  StreamReader first(host_->engine(), request);
  first.WaitToEnd();
  ASSERT_TRUE(first.status().ok()) << first.status();
  StreamReader second(host_->engine(), request);
  second.WaitToEnd();
  for (int32_t c = 0; c < 2; ++c) {
    EXPECT_EQ(first.choice(c).ids.at(0), 300);
    EXPECT_EQ(first.choice(c).ids, second.choice(c).ids);
  }
}

// A model whose embedding has more rows than its tokenizer has tokens, with large logits there.
class PaddedHost : public testing::Test {
 protected:
  static constexpr int32_t kTokens = 40;

  PaddedHost() : backend_(MakeCpuBackend({.threads = 1, .variant = ""}).value()) {
    model_.Randomise(3);
    TinyTensor& head = model_.tensors.at("output.weight");
    for (int32_t row = kTokens; row < model_.vocab; ++row) {
      for (int32_t k = 0; k < model_.hidden; ++k) {
        const float of_token = head.values[static_cast<size_t>((row - kTokens) / 2 * model_.hidden + k)];
        head.values[static_cast<size_t>(row * model_.hidden + k)] =
            (row % 2 == 0 ? 50.0f : -50.0f) * of_token;
      }
    }
    model_.WriteMistral(folder_);
    std::vector<SentencePieceModel::Piece> pieces;
    for (int32_t id = 5; id < kTokens; ++id) pieces.push_back({"p" + std::to_string(id), -1});
    folder_.Write("tokenizer.model.v3", ModelFile(SmallModel(pieces, Bytes::kWithout)));
  }
  std::unique_ptr<EngineHost> Start(OpenedModel opened) {
    EngineHostOptions options;
    options.memory_bytes = 64 * kMiB;
    return EngineHost::Start(std::move(opened), *backend_, options, clock_).value();
  }

  const SteadyClock clock_;
  BackendPtr backend_;
  TinyModel model_;
  TempFolder folder_;
};

TEST_F(PaddedHost, RowsBehindTheTokenizersTokensAreNeverDrawn) {
  const auto host = Start(OpenModel(folder_.path(), {}).value());
  EXPECT_EQ(host->model().config().padding_begin, kTokens);
  Request request;
  request.prompt = {1, 7, 90, 12, 95};  // ids of padding may be in a prompt
  request.stopping.max_tokens = 24;
  request.stopping.ignore_eos = true;
  request.output.logprobs = 20;
  request.output.prompt_logprobs = 5;
  request.sampling.repetition_penalty = 1.2f;
  request.sampling.logit_bias = {{91, 100.0f}};
  for (const float temperature : {0.0f, 1.0f}) {
    request.id = std::to_string(temperature);
    request.sampling.temperature = temperature;
    StreamReader reader(host->engine(), request);
    reader.WaitToEnd();
    ASSERT_TRUE(reader.status().ok()) << reader.status();
    ASSERT_EQ(reader.choice().ids.size(), 24u);
    for (const int32_t id : reader.choice().ids) EXPECT_LT(id, kTokens);
    const std::vector<TokenInfo>& of_prompt = reader.started().at(0).prompt_logprobs;
    ASSERT_EQ(of_prompt.size(), 4u);
    EXPECT_EQ(of_prompt[1].token, 90);
    EXPECT_EQ(of_prompt[1].logprob, -std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isfinite(of_prompt[2].logprob));
    for (const TokenInfo& info : reader.choice().logprobs) {
      for (const TokenLogprob& top : info.top) EXPECT_LT(top.token, kTokens);
    }
  }
}

TEST_F(PaddedHost, WhatEndsAnAnswerIsDrawnThoughTheTokenizerDoesNotKnowIt) {
  folder_.Write("generation_config.json", R"({"eos_token_id": 60})");
  EXPECT_EQ(Start(OpenModel(folder_.path(), {}).value())->model().config().padding_begin, 61);
}

// The CPU as an asynchronous device that records steps: what a host makes of such a backend, to the same
// text.
class BreezeHostOnALateDevice : public BreezeHost {
 protected:
  BreezeHostOnALateDevice()
      : BreezeHost(MakeDelayedBackend(MakeCpuBackend({.threads = 2, .variant = ""}).value(),
                                      DelayedBackend::Runs::kOnItsOwnThread)) {}
};

TEST_F(BreezeHostOnALateDevice, TwoStepsAreInFlightAndTheTextIsTheSame) {
  EXPECT_EQ(host_->plan().limits.steps_in_flight, 2);
  EXPECT_EQ(host_->engine().Load().steps, 0);
  const BackendPtr cpu = MakeCpuBackend({.threads = 2, .variant = ""}).value();
  auto at_once = EngineHost::Start(OpenModel(kBreeze, {}).value(), *cpu, options_, clock_);
  ASSERT_TRUE(at_once.ok()) << at_once.status();
  EXPECT_EQ((*at_once)->plan().limits.steps_in_flight, 1);
  Request request = Prompt("r", "Once upon a time", 60);
  request.sampling.temperature = 0.8f;
  request.sampling.seed = 3;
  request.sampling.frequency_penalty = 0.3f;
  request.choices = 3;
  StreamReader late(host_->engine(), request);
  StreamReader early((*at_once)->engine(), request);
  late.WaitToEnd();
  early.WaitToEnd();
  for (int32_t c = 0; c < 3; ++c) {
    EXPECT_EQ(late.choice(c).text, early.choice(c).text);
    EXPECT_EQ(late.choice(c).ids, early.choice(c).ids);
  }
}

TEST_F(BreezeHost, AStopStringCutsTheTextThatItWouldHaveGiven) {
  StreamReader whole(host_->engine(), Prompt("whole", "Once upon a time", 60));
  whole.WaitToEnd();
  const std::string text = whole.choice().text;
  const std::string stop = text.substr(text.size() / 2, 5);
  Request request = Prompt("cut", "Once upon a time", 60);
  request.stopping.stop = {stop};
  StreamReader cut(host_->engine(), request);
  cut.WaitToEnd();
  EXPECT_EQ(cut.choice().text, text.substr(0, text.find(stop)));
  EXPECT_EQ(cut.choice().end().reason, FinishReason::kStopSequence);
  EXPECT_LT(cut.choice().ids.size(), whole.choice().ids.size());
}

TEST_F(BreezeHost, TooLittleMemoryIsRefusedWithWhatIsNeeded) {
  options_.memory_bytes = kMiB;
  const auto refused = EngineHost::Start(OpenModel(kBreeze, {}).value(), *backend_, options_, clock_);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
}

// The output thread may be behind at any step; the decode is warm all the same.
TEST_F(BreezeHost, AFullOutputQueueDoesNotEndTheWarmUp) {
  options_.limits.output_queue_steps = 1;
  for (int i = 0; i < 5; ++i) {
    CountingBackend counting(*backend_);
    auto host = EngineHost::Start(OpenModel(kBreeze, {}).value(), counting, options_, clock_);
    ASSERT_TRUE(host.ok()) << host.status();
    EXPECT_EQ(counting.embeds, 2) << "a prefill and a decode";
  }
}

// Steps beside decode have a bound in time: the layers are timed before the warm-up, and nothing counts it.
TEST_F(BreezeHost, TheLayersAreTimedWhereStepsBesideDecodeAreCut) {
  EXPECT_TRUE(host_->plan().row_speeds.empty()) << "by default no step is cut";
  options_.limits.decode_gap_ns = 250'000'000;
  CountingBackend counting(*backend_);
  const auto host = EngineHost::Start(OpenModel(kBreeze, {}).value(), counting, options_, clock_);
  ASSERT_TRUE(host.ok()) << host.status();
  const std::vector<RowSpeed>& speeds = (*host)->plan().row_speeds;
  ASSERT_FALSE(speeds.empty());
  std::vector<int32_t> rows;
  for (const RowSpeed& speed : speeds) rows.push_back(speed.rows);
  const std::vector<int32_t> counts = {32, 64, 128, 256, 512};
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), counts.begin()));
  EXPECT_GE(counting.embeds, 2 + static_cast<int32_t>(speeds.size()));
  EXPECT_EQ((*host)->engine().limits().least_step_tokens, LeastFastRows(speeds));
  EXPECT_EQ((*host)->engine().Load().steps, 0);
  // One after the other: both engines have the same backend.
  StreamReader uncut(host_->engine(), Prompt("r", "Once upon a", 40));
  uncut.WaitToEnd();
  StreamReader cut((*host)->engine(), Prompt("r", "Once upon a", 40));
  cut.WaitToEnd();
  EXPECT_EQ(cut.choice().text, uncut.choice().text);
}

TEST_F(BreezeHost, NothingIsTimedWhereTheLeastStepIsGiven) {
  options_.limits.decode_gap_ns = 250'000'000;
  options_.limits.least_step_tokens = 64;
  CountingBackend counting(*backend_);
  const auto host = EngineHost::Start(OpenModel(kBreeze, {}).value(), counting, options_, clock_);
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_EQ(counting.embeds, 2) << "a prefill and a decode";
  EXPECT_EQ((*host)->engine().limits().least_step_tokens, 64);
}

// Tokens a second of a 1.1B model on two cores, and machines that bend otherwise.
TEST(LeastFastRowsTest, IsTheFirstWithNineTenthsOfTheBest) {
  const auto speeds = [](const std::vector<std::pair<int32_t, int64_t>>& rows_per_second) {
    std::vector<RowSpeed> measured;
    for (const auto& [rows, speed] : rows_per_second)
      measured.push_back({rows, rows * int64_t{1'000'000'000} / speed});
    return measured;
  };
  EXPECT_EQ(LeastFastRows(speeds({{32, 166}, {64, 188}, {128, 194}, {512, 182}})), 64);
  EXPECT_EQ(LeastFastRows(speeds({{32, 100}, {64, 200}, {128, 400}, {256, 800}, {512, 1600}})), 512);
  EXPECT_EQ(LeastFastRows(speeds({{32, 190}, {64, 170}, {128, 200}})), 32);
  EXPECT_EQ(LeastFastRows(speeds({{20, 5}})), 20);
}

TEST_F(BreezeHost, ATokenizerMayLieElsewhere) {
  const TempFolder folder;
  std::filesystem::copy(kBreeze, folder.path(), std::filesystem::copy_options::recursive);
  const std::string name = "tokenizer.model.v3";
  std::filesystem::remove(folder.PathOf(name));
  const auto without = EngineHost::Start(OpenModel(folder.path(), {}).value(), *backend_, options_, clock_);
  EXPECT_EQ(without.status().code(), StatusCode::kNotFound);
  FileChoice choice;
  choice.tokenizer = std::string(kBreeze) + "/" + name;
  const auto host =
      EngineHost::Start(OpenModel(folder.path(), {}, choice).value(), *backend_, options_, clock_);
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_EQ((*host)->tokenizer().vocab_size(), host_->tokenizer().vocab_size());
}

TEST_F(BreezeHost, AnswersEndAtTheEndsOfTheConfigAndAtThatOfATurn) {
  EXPECT_EQ(host_->chat_format().name(), "v3");
  EXPECT_EQ(host_->model().config().eos_ids, std::vector<int32_t>{2}) << "the same one";
  OpenedModel opened = OpenModel(kBreeze, {}).value();
  opened.config.eos_ids = {7};
  const auto host = EngineHost::Start(std::move(opened), *backend_, options_, clock_);
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_EQ((*host)->model().config().eos_ids, (std::vector<int32_t>{7, 2}));
}

TEST_F(BreezeHost, TheChatFormatIsTheOneAskedFor) {
  options_.chat_format = "v2";
  const auto v2 = EngineHost::Start(OpenModel(kBreeze, {}).value(), *backend_, options_, clock_);
  ASSERT_TRUE(v2.ok()) << v2.status();
  EXPECT_EQ((*v2)->chat_format().name(), "v2");
  options_.chat_format = "chatml";
  const auto refused = EngineHost::Start(OpenModel(kBreeze, {}).value(), *backend_, options_, clock_);
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.status().message().find("chat_format is chatml"), std::string::npos) << refused.status();
}

// Finite themselves, and too large to compute with.
TEST_F(BreezeHost, WeightsWhoseLogitsOverflowAreRefusedByTheWarmUp) {
  const TempFolder folder;
  std::filesystem::copy(kBreeze, folder.path(), std::filesystem::copy_options::recursive);
  const auto files = WeightFiles::Open(FindModelFiles(folder.path()).value()).value();
  const WeightFiles::Found norm = files.all().at("model.norm.weight");
  std::fstream file(norm.file->path(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(norm.tensor->begin);
  file << std::string(static_cast<size_t>(norm.tensor->end - norm.tensor->begin), '\x7f');  // 3.4e38 in bf16
  file.close();
  const auto refused = EngineHost::Start(OpenModel(folder.path(), {}).value(), *backend_, options_, clock_);
  EXPECT_EQ(refused.status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(refused.status().message().find(folder.path() + ": the model's logits are not finite"), 0u)
      << refused.status();
}

// With a pool that holds one long prompt, a host that holds few, and a disk.
TEST_F(BreezeHost, EvictedPagesComeBackFromItsTier) {
  const TempFolder disk;
  options_.limits.pool_pages = 40;
  options_.limits.max_step_tokens = 64;
  options_.limits.max_sequences = 2;
  options_.limits.max_choices = 1;
  options_.tier = {.host_bytes = 8 * kMiB, .disk_folder = disk.path(), .disk_bytes = 16 * kMiB};
  auto started = EngineHost::Start(OpenModel(kBreeze, {}).value(), *backend_, options_, clock_);
  ASSERT_TRUE(started.ok()) << started.status();
  host_ = *std::move(started);
  const int64_t page_bytes = host_->plan().layout.page_bytes();
  EXPECT_EQ(host_->plan().limits.host_kv_bytes, 8 * kMiB / page_bytes * page_bytes);
  EXPECT_EQ(host_->plan().limits.disk_kv_bytes, 16 * kMiB / page_bytes * page_bytes);
  EXPECT_GT(host_->plan().page_copy_ns, 0);
  const auto tell = [&](const std::string& about) {
    std::string text = "Once upon a time there was a " + about + ".";
    for (int i = 0; i < 45; ++i) text += " The " + about + " went on and on.";
    StreamReader reader(host_->engine(), Prompt(about, text, 8));
    EXPECT_TRUE(reader.refused().ok()) << reader.refused();
    reader.WaitToEnd();
    return std::pair(reader.choice().ids, reader.choice().end().usage.cached_tokens);
  };
  const auto [first_ids, first_cached] = tell("fox");
  EXPECT_EQ(first_cached, 0);
  for (const char* other : {"bear", "crow", "frog", "hare"}) tell(other);
  const auto [again_ids, again_cached] = tell("fox");
  EXPECT_GT(again_cached, 256) << "more than a window was computed";
  EXPECT_EQ(again_ids, first_ids);
  EXPECT_GT(host_->engine().Load().host_kv_bytes, 0);
}

TEST_F(BreezeHost, RefusesATierThatCannotBe) {
  const TempFolder disk;
  const auto refusal = [&](const KvTierOptions& tier, bool prefix_cache = true) {
    options_.tier = tier;
    options_.limits.prefix_cache = prefix_cache;
    return EngineHost::Start(OpenModel(kBreeze, {}).value(), *backend_, options_, clock_).status().ToString();
  };
  EXPECT_EQ(refusal({.host_bytes = 1000}),
            "INVALID_ARGUMENT: host_kv is 1000 bytes, the least is 2 pages of 24576");
  EXPECT_EQ(refusal({.disk_folder = disk.path(), .disk_bytes = 1000}),
            "INVALID_ARGUMENT: disk_kv_size is 1000 bytes, the least is a page of 24576");
  EXPECT_EQ(
      refusal({.host_bytes = kMiB}, /*prefix_cache=*/false),
      "INVALID_ARGUMENT: host_kv is set, and prefix_cache is off: pages are found there by their tokens");
  EXPECT_EQ(refusal({.disk_folder = disk.PathOf("none"), .disk_bytes = kMiB}),
            "INVALID_ARGUMENT: disk_kv is \"" + disk.PathOf("none") +
                "\", which is no folder to keep pages in: No such file or directory");
}

TEST_F(BreezeHost, EndsWhatRunsWhenItIsDestroyed) {
  StreamReader reader(host_->engine(), Prompt("r", "Once upon a time", 4000));
  host_.reset();
  reader.WaitToEnd();
  EXPECT_EQ(reader.status().code(), StatusCode::kUnavailable);
}

// By it a file of keys and values knows its model, though every tensor is the same.
TEST(SampleOfWeightsTest, DiffersWhereTheConfigChangesTheKeys) {
  OpenedModel model = OpenModel(kBreeze, {}).value();
  const std::string sample = SampleOfWeights(model);
  EXPECT_EQ(SampleOfWeights(OpenModel(kBreeze, {}).value()), sample);
  const ModelConfig config = model.config;
  const std::pair<const char*, void (*)(ModelConfig&)> changes[] = {
      {"rope_theta", [](ModelConfig& c) { c.rope_theta *= 2.0; }},
      {"rope_scaling", [](ModelConfig& c) { c.rope_scaling.magnitude *= 2.0; }},
      {"rms_epsilon", [](ModelConfig& c) { c.rms_epsilon *= 2.0f; }},
      {"rotary_style",
       [](ModelConfig& c) {
         c.rotary_style =
             c.rotary_style == RotaryStyle::kHalfSplit ? RotaryStyle::kInterleaved : RotaryStyle::kHalfSplit;
       }},
      {"experts_per_token", [](ModelConfig& c) { ++c.experts_per_token; }},
      {"query_scaling.beta", [](ModelConfig& c) { c.query_scaling.beta += 0.1; }},
      {"query_scaling.positions", [](ModelConfig& c) { ++c.query_scaling.positions; }}};
  for (const auto& [name, change] : changes) {
    model.config = config;
    change(model.config);
    EXPECT_NE(SampleOfWeights(model), sample) << name;
  }
}

}  // namespace
}  // namespace tramontane
