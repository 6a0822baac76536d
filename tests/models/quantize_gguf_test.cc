// A model written a second time as a GGUF file: our own reader finds the same config, the same ids of text
// and the weights rounded as ggml rounds them, and PyPI's `gguf` the same bytes
// (tests/golden/quantize_gguf.json).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>

#include "kernels/backends/cpu_backend.h"
#include "kernels/core/block_types.h"
#include "models/gguf/gguf_file.h"
#include "models/quantized/encode_blocks.h"
#include "models/quantized/gguf_model.h"
#include "models/tokenizer/gguf_tokenizer.h"
#include "models/tokenizer/gguf_tokenizer_keys.h"
#include "models/tokenizer/load.h"
#include "tests/support/load_folder.h"
#include "tests/support/model_driver.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const std::string kGoldens = std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/";

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// What blocks of `type` make of numbers.
std::vector<float> Rounded(DType type, const std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<std::byte> blocks(static_cast<size_t>(Format(type).Bytes(count)));
  EXPECT_TRUE(EncodeBlocks(type, values, blocks.data()));
  std::vector<float> rounded(values.size());
  DecodeBlocks(type, blocks.data(), count, rounded.data());
  return rounded;
}

// ---- blocks

TEST(EncodeBlocks, NumbersAreTheNearestThatTheScaleHolds) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> values(4096);
  for (float& value : values) value = normal(random);
  for (const auto& [type, steps] : {std::pair(DType::kQ8_0, 127.0f), {DType::kQ4_0, 8.0f}}) {
    const std::vector<float> rounded = Rounded(type, values);
    for (size_t block = 0; block < values.size(); block += 32) {
      float largest = 0.0f;
      for (size_t i = block; i < block + 32; ++i) largest = std::max(largest, std::abs(values[i]));
      // Q4_0 cuts off what lies opposite to the largest number at 7 of its 8 steps. The scale is rounded to
      // 11 bits, so that the largest numbers are off by that besides.
      const float most = largest / steps * (type == DType::kQ4_0 ? 1.0f : 0.5f) + largest / 1024;
      for (size_t i = block; i < block + 32; ++i) EXPECT_LE(std::abs(values[i] - rounded[i]), most);
    }
  }
}

TEST(EncodeBlocks, HalvesAreRoundedAwayFromZero) {
  std::vector<float> values(32, 0.0f);
  values[0] = 127.0f;
  values[1] = 2.5f;
  values[2] = -2.5f;
  std::vector<std::byte> block(34);
  ASSERT_TRUE(EncodeBlocks(DType::kQ8_0, values, block.data()));
  EXPECT_EQ(static_cast<int8_t>(block[2]), 127);
  EXPECT_EQ(static_cast<int8_t>(block[3]), 3);
  EXPECT_EQ(static_cast<int8_t>(block[4]), -3);
  // The scale is -127 / 8: its own number is 0, zeros are 8, and number 16 shares a byte with number 0.
  values[16] = 127.0f;
  ASSERT_TRUE(EncodeBlocks(DType::kQ4_0, values, block.data()));
  EXPECT_EQ(block[2], std::byte{0x00});
  EXPECT_EQ(block[5], std::byte{0x88});
}

TEST(EncodeBlocks, ZerosAreZerosAndWhatHasNoScaleIsSaid) {
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    EXPECT_EQ(Rounded(type, std::vector<float>(64, 0.0f)), std::vector<float>(64, 0.0f));
    EXPECT_EQ(Rounded(type, std::vector<float>(32, 1e-42f)), std::vector<float>(32, 0.0f));
    std::vector<std::byte> block(34);
    for (const float broken : {NAN, INFINITY, 3e7f}) {
      std::vector<float> values(32, 1.0f);
      values[7] = broken;
      EXPECT_FALSE(EncodeBlocks(type, values, block.data())) << broken;
    }
  }
}

// ---- models

class QuantizeGgufTest : public testing::Test {
 protected:
  QuantizeGgufTest() {
    model_.hidden = 64;
    model_.head_dim = 16;
    model_.intermediate = 96;
    model_.Randomise(3);
  }

  StatusOr<QuantizeResult> Write(const std::string& from, const std::string& to,
                                 const GgufModelOptions& options) {
    TM_ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(from, {}));
    return WriteGgufModel(opened, to, options);
  }
  std::string Refusal(const std::string& from, const std::string& to) {
    const auto written = Write(from, to, {});
    EXPECT_FALSE(std::filesystem::exists(to));
    return written.ok() ? "it was taken" : written.status().message();
  }
  std::string Out(const std::string& name) const { return folder_.PathOf(name + ".gguf"); }

  TinyModel model_;
  TempFolder source_;
  TempFolder folder_;
};

void ExpectSameConfig(const ModelConfig& is, const ModelConfig& was) {
  EXPECT_EQ(is.vocab_size, was.vocab_size);
  EXPECT_EQ(is.hidden_size, was.hidden_size);
  EXPECT_EQ(is.layers, was.layers);
  EXPECT_EQ(is.heads, was.heads);
  EXPECT_EQ(is.kv_heads, was.kv_heads);
  EXPECT_EQ(is.head_dim, was.head_dim);
  EXPECT_EQ(is.intermediate_size, was.intermediate_size);
  EXPECT_EQ(is.experts, was.experts);
  EXPECT_EQ(is.experts_per_token, was.experts_per_token);
  EXPECT_EQ(is.rms_epsilon, was.rms_epsilon);
  EXPECT_EQ(is.context, was.context);
  EXPECT_EQ(is.window, was.window);
  EXPECT_EQ(is.tied_embeddings, was.tied_embeddings);
  EXPECT_EQ(is.bos_id, was.bos_id);
  EXPECT_EQ(is.eos_ids, was.eos_ids);
  // The format's numbers are floats.
  constexpr double kRounding = 3e-7;
  const auto frequencies = RotaryFrequencies(is.rope_theta, is.head_dim, is.rope_scaling);
  const auto wanted = RotaryFrequencies(was.rope_theta, was.head_dim, was.rope_scaling);
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(frequencies[i] / wanted[i], 1.0, kRounding) << i;
  EXPECT_NEAR(is.rope_scaling.magnitude, was.rope_scaling.magnitude, kRounding);
  EXPECT_NEAR(is.query_scaling.beta, was.query_scaling.beta, kRounding);
  if (was.query_scaling.beta != 0.0) {
    EXPECT_EQ(is.query_scaling.positions, was.query_scaling.positions);
  }
  EXPECT_TRUE(is.warnings.empty()) << is.warnings[0];
}

TEST_F(QuantizeGgufTest, ConfigIsReadBackAsItWas) {
  for (const char* name :
       {"window16", "layer_types", "layer_types_native", "head_dim", "tied", "llama", "llama3_scaling",
        "ministral3", "ministral3_native", "mistral3", "mixtral", "mixtral_native"}) {
    SCOPED_TRACE(name);
    const OpenedModel before = OpenModel(kGoldens + name, {}).value();
    const auto written = WriteGgufModel(before, Out(name), {});
    ASSERT_TRUE(written.ok()) << written.status();
    const auto after = OpenModel(Out(name), {});
    ASSERT_TRUE(after.ok()) << after.status();
    ExpectSameConfig(after->config, before.config);
  }
}

// Logits of the same numbers in f32: a sum that is cut in another way moves a logit of size 10 by less than
// 1e-4 through two layers, as gguf_weights_test.cc has it.
std::vector<float> LogitsOf(const std::string& path, int32_t vocab) {
  BackendPtr backend = MakeCpuBackend({.threads = 2, .variant = "", .linear = LinearMode::kExact}).value();
  LoadOptions options;
  options.kv.dtype = DType::kF32;
  auto model = LoadFolder(path, *backend, options);
  EXPECT_TRUE(model.ok()) << model.status();
  ModelDriver driver(**model, *backend, {});
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 24; ++i) tokens.push_back(i * 7 % vocab);
  return driver.Step({{driver.AddSequence(), tokens}})[0];
}

TEST_F(QuantizeGgufTest, ItComputesWhatTheRoundedWeightsDo) {
  constexpr double kTolerance = 1e-4;
  for (const int32_t experts : {0, 4}) {
    model_.experts = experts;
    model_.Randomise(11);
    for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
      SCOPED_TRACE(std::to_string(experts) + DTypeName(type));
      TempFolder hugging_face, native, rounded;
      model_.WriteHuggingFace(hugging_face);
      model_.WriteMistral(native);
      const std::string kind = std::to_string(experts) + DTypeName(type);
      GgufModelOptions options;
      options.type = type;
      ASSERT_TRUE(Write(hugging_face.path(), Out("hf" + kind), options).ok());
      ASSERT_TRUE(Write(native.path(), Out("native" + kind), options).ok());
      TinyModel same = model_;
      int matrices = 0;
      for (auto& [name, tensor] : same.tensors) {
        const bool stays = tensor.shape.size() < 2 || name.starts_with("tok_embeddings") ||
                           name.starts_with("output.") || name.ends_with("gate.weight");
        if (stays) continue;
        tensor.values = Rounded(type, tensor.values);
        ++matrices;
      }
      EXPECT_GE(matrices, 14);
      same.WriteMistral(rounded);
      const std::vector<float> wanted = LogitsOf(rounded.path(), model_.vocab);
      const std::vector<float> plain = LogitsOf(native.path(), model_.vocab);
      double moved = 0.0;
      for (const char* from : {"hf", "native"}) {
        const std::vector<float> logits = LogitsOf(Out(from + kind), model_.vocab);
        for (size_t i = 0; i < wanted.size(); ++i) {
          ASSERT_NEAR(logits[i], wanted[i], kTolerance) << from << " " << i;
          moved = std::max(moved, double{std::abs(wanted[i] - plain[i])});
        }
      }
      // Else the rounding would not be seen.
      EXPECT_GT(moved, 10 * kTolerance);
    }
  }
}

TEST_F(QuantizeGgufTest, NormsAndRoutersAreF32AndOthersStayAsTheyAre) {
  const OpenedModel before = OpenModel(kGoldens + "mixtral", {}).value();
  ASSERT_TRUE(WriteGgufModel(before, Out("a"), {}).ok());
  const OpenedModel after = OpenModel(Out("a"), {}).value();
  const auto type = [&](const std::string& name) {
    return after.weight_files->all().at(name).tensor->dtype_name;
  };
  EXPECT_EQ(type("blk.0.attn_norm.weight"), "F32");
  EXPECT_EQ(type("blk.0.ffn_gate_inp.weight"), "F32");
  EXPECT_EQ(type("blk.1.ffn_up_exps.weight"), "Q8_0");
  // Rows of 24 are no whole blocks.
  EXPECT_EQ(type("blk.1.ffn_down_exps.weight"), "BF16");
  EXPECT_EQ(type("token_embd.weight"),
            before.weight_files->all().at("model.embed_tokens.weight").tensor->dtype_name);
  GgufModelOptions options;
  options.keep = {"*block_sparse_moe*"};
  ASSERT_TRUE(WriteGgufModel(before, Out("b"), options).ok());
  const OpenedModel kept = OpenModel(Out("b"), {}).value();
  EXPECT_EQ(kept.weight_files->all().at("token_embd.weight").tensor->dtype_name, "Q8_0");
  EXPECT_EQ(kept.weight_files->all().at("blk.1.ffn_up_exps.weight").tensor->dtype_name, "BF16");
}

TEST_F(QuantizeGgufTest, TheSameModelGivesTheSameBytes) {
  model_.WriteHuggingFace(source_);
  for (const char* out : {"a", "b"}) ASSERT_TRUE(Write(source_.path(), Out(out), {}).ok());
  EXPECT_FALSE(ReadAll(Out("a")).empty());
  EXPECT_EQ(ReadAll(Out("a")), ReadAll(Out("b")));
}

// Blocks of the same type are copied, others are decoded first; nothing changes its place a second time.
TEST_F(QuantizeGgufTest, AGgufFileIsAModelToo) {
  model_.WriteHuggingFace(source_);
  GgufModelOptions q4;
  q4.type = DType::kQ4_0;
  ASSERT_TRUE(Write(source_.path(), Out("q8"), {}).ok());
  ASSERT_TRUE(Write(Out("q8"), Out("again"), {}).ok());
  EXPECT_EQ(ReadAll(Out("q8")), ReadAll(Out("again")));
  ASSERT_TRUE(Write(Out("q8"), Out("q4"), q4).ok());
  const OpenedModel from = OpenModel(Out("q8"), {}).value();
  const OpenedModel to = OpenModel(Out("q4"), {}).value();
  const auto values = [](const OpenedModel& model, const std::string& name) {
    const FoundTensor found = model.weight_files->all().at(name);
    const Format& format = *found.tensor->format;
    const int64_t count =
        (found.tensor->end - found.tensor->begin) / format.block_bytes * format.block_size();
    std::vector<float> decoded(static_cast<size_t>(count));
    DecodeBlocks(format, found.data(), count, decoded.data());
    return decoded;
  };
  EXPECT_EQ(values(to, "blk.1.attn_q.weight"), Rounded(DType::kQ4_0, values(from, "blk.1.attn_q.weight")));
}

TEST_F(QuantizeGgufTest, WhatCannotBeSaidIsRefusedByName) {
  EXPECT_THAT(Refusal(kGoldens + "yarn", Out("a")), HasSubstr("truncate"));
  model_.WriteMistral(source_);
  OpenedModel windows = OpenModel(source_.path(), {}).value();
  windows.config.window = {16, 24};
  EXPECT_THAT(WriteGgufModel(windows, Out("a"), {}).status().message(),
              HasSubstr("layers with windows of 16 and of 24"));
  OpenedModel ends = OpenModel(source_.path(), {}).value();
  ends.config.eos_ids = {2, 3, 4, 5};
  EXPECT_THAT(WriteGgufModel(ends, Out("a"), {}).status().message(), HasSubstr("4 ids that end an answer"));
  OpenedModel magnitude = OpenModel(source_.path(), {}).value();
  magnitude.config.rope_scaling = {.kind = RopeScaling::Kind::kYarn,
                                   .factor = 4.0,
                                   .original_context = 128,
                                   .fast = 32,
                                   .slow = 1,
                                   .truncate = true,
                                   .magnitude = 2.0};
  EXPECT_THAT(WriteGgufModel(magnitude, Out("a"), {}).status().message(),
              HasSubstr("YaRN with a factor of 2.0"));
  EXPECT_FALSE(std::filesystem::exists(Out("a")));
}

TEST_F(QuantizeGgufTest, WhatCannotBeDoneIsSaidAndLeavesNothing) {
  model_.WriteHuggingFace(source_);
  GgufModelOptions all;
  all.keep = {"*"};
  EXPECT_THAT(Write(source_.path(), Out("a"), all).status().message(), HasSubstr("nothing to do"));
  folder_.Write("mine.gguf", "mine");
  EXPECT_THAT(Write(source_.path(), Out("mine"), {}).status().message(), HasSubstr("is there"));
  EXPECT_EQ(ReadAll(Out("mine")), "mine");
  EXPECT_FALSE(Write(source_.path(), folder_.PathOf("none/a.gguf"), {}).ok());
  TempFolder coded;
  std::filesystem::remove(coded.path());
  ASSERT_TRUE(
      QuantizeModel(OpenModel(source_.path(), {}).value(), coded.path(), {.bits = 4, .group = 32}).ok());
  EXPECT_THAT(Refusal(coded.path(), Out("a")), HasSubstr("quantised already"));
  model_.tensors.at("layers.1.feed_forward.w3.weight").values[70] = NAN;
  model_.WriteHuggingFace(source_);
  EXPECT_THAT(Refusal(source_.path(), Out("a")), AllOf(HasSubstr("up_proj.weight"), HasSubstr("not finite")));
}

// ---- tokenizers

StatusOr<std::unique_ptr<const Tokenizer>> AsGguf(const std::string& path, int64_t vocab_size) {
  TM_ASSIGN_OR_RETURN(const GgufKeys keys, MakeGgufTokenizerKeys(path, vocab_size));
  return MakeGgufTokenizer(keys.Metadata("keys"));
}

std::vector<std::string> Texts() {
  std::vector<std::string> texts = {
      "Hello  you",          "The year 1984, don't!",  " a\n\n b\t",           "[INST] hi [/INST]</s>",
      "naïve Größe 世界 🙂", "x = f(a[0]) + 3.14\r\n", "aaaaaaaaaaaaaaaaaaaaa"};
  std::mt19937 random(9);
  const std::string letters = "aabcdeeeimnorst  .,'\n10<>[]";
  for (int i = 0; i < 200; ++i) {
    std::string& text = texts.emplace_back();
    for (uint32_t k = 0; k < 1 + random() % 60; ++k) text += letters[random() % letters.size()];
  }
  return texts;
}

TEST(GgufTokenizerKeys, TextHasTheSameIds) {
  for (const char* name : {"tests/golden/chat_v7_tokenizer", "tests/golden/chat_tekken_tokenizer",
                           "models/breeze/weights", "tests/golden/tokenizer_json/gpt2",
                           "tests/golden/tokenizer_json/smollm", "tests/golden/tokenizer_json/qwen2",
                           "tests/golden/tokenizer_json/llama3", "tests/golden/tokenizer_json/tekken"}) {
    SCOPED_TRACE(name);
    const std::string path = std::string(TRAMONTANE_SOURCE_DIR) + "/" + name;
    const auto was = LoadTokenizer(path).value();
    // Three more than the file has.
    const auto loaded = AsGguf(path, was->vocab_size() + 3);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const Tokenizer& is = **loaded;
    EXPECT_EQ(is.vocab_size(), was->vocab_size() + 3);
    EXPECT_EQ(is.bos_id(), was->bos_id());
    EXPECT_EQ(is.eos_id(), was->eos_id());
    EXPECT_EQ(is.adds_bos(), was->adds_bos());
    for (int32_t id = 0; id < was->vocab_size(); ++id) {
      ASSERT_EQ(is.IsControl(id), was->IsControl(id)) << id;
      ASSERT_EQ(is.PieceBytes(id), was->PieceBytes(id)) << id;
    }
    for (const std::string& text : Texts()) {
      const auto ids = was->Encode(text);
      ASSERT_EQ(is.Encode(text).value(), ids.value()) << text;
      ASSERT_EQ(is.EncodeWithControlTokens(text).value(), was->EncodeWithControlTokens(text).value()) << text;
      ASSERT_EQ(is.Decode(*ids).value(), was->Decode(*ids).value()) << text;
    }
  }
}

TEST(GgufTokenizerKeys, OfAGgufFileTheyAreThatFiles) {
  const GgufKeys keys =
      MakeGgufTokenizerKeys(std::string(TRAMONTANE_SOURCE_DIR) + "/models/breeze/weights", 2048).value();
  TempFolder folder;
  TinyModel model;
  model.vocab = 2048;
  model.Randomise(1);
  model.WriteHuggingFace(folder);
  GgufModelOptions options;
  options.tokenizer = keys;
  const OpenedModel opened = OpenModel(folder.path(), {}).value();
  const auto written = WriteGgufModel(opened, folder.PathOf("x.gguf"), options);
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(MakeGgufTokenizerKeys(folder.PathOf("x.gguf"), 2048).value().Bytes(), keys.Bytes());
  // A tokenizer of another size than the embedding.
  options.tokenizer =
      MakeGgufTokenizerKeys(std::string(TRAMONTANE_SOURCE_DIR) + "/models/breeze/weights", 2050).value();
  EXPECT_THAT(WriteGgufModel(opened, folder.PathOf("y.gguf"), options).status().message(),
              AllOf(HasSubstr("2050 tokens"), HasSubstr("rows for 2048")));
}

TEST(GgufTokenizerKeys, WhatTheyCannotSayIsRefusedByName) {
  const auto refusal = [](const std::string& name, int64_t vocab_size) {
    const auto keys = MakeGgufTokenizerKeys(kGoldens + name, vocab_size);
    return keys.ok() ? "it was taken" : keys.status().ToString();
  };
  EXPECT_THAT(refusal("tokenizer_json/llama2", 100000), HasSubstr("not byte-level"));
  EXPECT_THAT(refusal("tokenizer_json/other_pattern", 100000), HasSubstr("pre_tokenizer"));
  EXPECT_THAT(refusal("chat_v7_tokenizer", 10), HasSubstr("the embedding has rows for 10"));
  EXPECT_THAT(refusal("tied", 100), HasSubstr("no tekken.json"));
}

// Merging finds a token as its two largest parts, by rank; one that no two of lower rank make has no pair.
TEST(MergesOfRanks, ArePairsOfLowerRanks) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token : {"ab", "cd", "abcd", "xyz", "abc", "aa", "aaaa"}) tokens.emplace_back(token);
  using Pair = std::pair<std::string, std::string>;
  EXPECT_EQ(MergesOfRanks(tokens),
            (std::vector<Pair>{{"a", "b"}, {"c", "d"}, {"ab", "cd"}, {"ab", "c"}, {"a", "a"}, {"aa", "aa"}}));
}

// ---- what PyPI's gguf finds: make_quantize_gguf_goldens.py

std::string Sha256(const std::byte* data, int64_t bytes) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(data), static_cast<size_t>(bytes), digest);
  std::string hex;
  for (const unsigned char byte : digest) {
    char text[4];
    std::snprintf(text, sizeof(text), "%02x", byte);
    hex += text;
  }
  return hex;
}

TEST_F(QuantizeGgufTest, PypisGgufRoundsToTheSameBytes) {
  const json runs = json::parse(ReadAll(kGoldens + "quantize_gguf.json"))["runs"];
  EXPECT_EQ(runs.size(), 14u);
  for (const json& run : runs) {
    const std::string model = run["model"], type = run["type"];
    SCOPED_TRACE(model + " " + type);
    GgufModelOptions options;
    options.type = type == "Q4_0" ? DType::kQ4_0 : DType::kQ8_0;
    const std::string out = Out(std::filesystem::path(model).filename().string() + type);
    const auto written = Write(std::string(TRAMONTANE_SOURCE_DIR) + "/" + model, out, options);
    ASSERT_TRUE(written.ok()) << written.status();
    const OpenedModel opened = OpenModel(out, {}).value();
    EXPECT_EQ(opened.weight_files->all().size(), run["tensors"].size());
    for (const auto& [name, wanted] : run["tensors"].items()) {
      const FoundTensor found = opened.weight_files->all().at(name);
      EXPECT_EQ(found.tensor->dtype_name, wanted["type"].get<std::string>()) << name;
      EXPECT_EQ(json(found.tensor->shape), wanted["shape"]) << name;
      EXPECT_EQ(Sha256(found.data(), found.tensor->end - found.tensor->begin), wanted["sha256"]) << name;
    }
  }
}

}  // namespace
}  // namespace tramontane
