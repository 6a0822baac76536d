// A GGUF file written a second time as a folder of safetensors in small integers: the same tensors, config
// and ids of text as from the folder that the file was made of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "models/quantized/gguf_model.h"
#include "models/quantized/quantize_model.h"
#include "models/quantized/same_model.h"
#include "models/tensor_values.h"
#include "models/tokenizer/gguf_tokenizer.h"
#include "models/tokenizer/gguf_tokenizer_keys.h"
#include "models/tokenizer/load.h"
#include "models/tokenizer/tokenizer_files.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string GoldenPath(const std::string& name) {
  return std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/" + name;
}

std::vector<float> ValuesOfTensor(const FoundTensor& found) {
  std::vector<float> values;
  ReadValues(*found.file, *found.tensor,
             [&](std::span<const float> some) { values.insert(values.end(), some.begin(), some.end()); });
  return values;
}

OpenedModel Quantized(const std::string& from, const std::string& to, const QuantizeOptions& options) {
  const OpenedModel opened = OpenModel(from, {}).value();
  const auto result = QuantizeModel(opened, to, options);
  EXPECT_TRUE(result.ok()) << result.status();
  OpenedModel written = OpenModel(to, {}).value();
  EXPECT_TRUE(CheckTensors(written.weights, *written.weight_files, written.config).ok());
  return written;
}

struct Pair {
  const char* name;
  std::vector<std::string> keep;  // rows that are no whole groups of 32, and what is always kept
};
std::ostream& operator<<(std::ostream& out, const Pair& pair) { return out << pair.name; }

class FromGguf : public testing::TestWithParam<Pair> {};

// All of these have their matrices in bf16 in both files; norms, which a GGUF file widens, have their
// numbers.
TEST_P(FromGguf, TensorsAndConfigAreThoseOfTheFolder) {
  const TempFolder folder;
  for (const int32_t bits : {4, 8}) {
    SCOPED_TRACE(bits);
    const QuantizeOptions options = {.bits = bits, .group = 32, .keep = GetParam().keep};
    const std::string out = folder.PathOf(std::to_string(bits));
    const OpenedModel want = Quantized(GoldenPath(GetParam().name), out + "hf", options);
    const OpenedModel got =
        Quantized(GoldenPath(std::string(GetParam().name) + "_gguf"), out + "gguf", options);
    EXPECT_EQ(got.config.architecture, want.config.architecture);
    EXPECT_EQ(WhatDiffers(want.config, got.config), "");
    EXPECT_EQ(got.config.bos_id, want.config.bos_id);
    EXPECT_EQ(got.config.rotary_style, RotaryStyle::kHalfSplit);
    ASSERT_EQ(got.weight_files->all().size(), want.weight_files->all().size());
    int64_t packed = 0;
    for (const auto& [name, is] : got.weight_files->all()) {
      ASSERT_EQ(want.weight_files->all().count(name), 1u) << name;
      const FoundTensor& was = want.weight_files->all().at(name);
      ASSERT_EQ(is.tensor->shape, was.tensor->shape) << name;
      packed += name.ends_with(".weight_packed") ? 1 : 0;
      if (is.tensor->dtype_name != was.tensor->dtype_name) {
        EXPECT_EQ(ValuesOfTensor(is), ValuesOfTensor(was)) << name;
        continue;
      }
      const auto bytes = static_cast<size_t>(is.tensor->end - is.tensor->begin);
      EXPECT_EQ(std::memcmp(is.data(), was.data(), bytes), 0) << name;
    }
    EXPECT_GT(packed, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Goldens, FromGguf,
    testing::Values(Pair{"mixtral",
                         {"*embed*", "token_embd.*", "*lm_head*", "output.*", "*.w2.*", "*down_exps*"}},
                    Pair{"layer_types",
                         {"*embed*", "token_embd.*", "*lm_head*", "output.*", "*q_proj*", "*k_proj*",
                          "*v_proj*", "*attn_q*", "*attn_k*", "*attn_v*", "*gate*", "*up*"}},
                    Pair{"llama3_scaling",
                         {"*embed*", "token_embd.*", "*lm_head*", "output.*", "*q_proj*", "*k_proj*",
                          "*v_proj*", "*attn_q*", "*attn_k*", "*attn_v*", "*gate*", "*up*"}}),
    [](const auto& info) { return std::string(info.param.name); });

// YaRN and scaled queries; the folder beside it is a model for images, whose tensors have other names.
TEST(FromGgufConfig, OfMinistral3IsReadBack) {
  const TempFolder folder;
  const OpenedModel before = OpenModel(GoldenPath("ministral3_gguf"), {}).value();
  const OpenedModel after = Quantized(GoldenPath("ministral3_gguf"), folder.PathOf("out"), {.group = 32});
  EXPECT_EQ(after.config.architecture, "Ministral3ForCausalLM");
  EXPECT_NE(after.config.query_scaling.beta, 0.0);
  EXPECT_TRUE(after.config.tied_embeddings);
  EXPECT_EQ(WhatDiffers(before.config, after.config), "");
}

// Bands that no release has are found by the line through two frequencies.
TEST(FromGgufConfig, BandsOfLlama3FollowFromTheDivisors) {
  TinyModel model;
  model.head_dim = 64;
  model.intermediate = 64;
  model.Randomise(1);
  const TempFolder source, folder;
  model.WriteHuggingFace(source);
  OpenedModel opened = OpenModel(source.path(), {}).value();
  opened.config.rope_theta = 500000.0;
  opened.config.rope_scaling = {
      .kind = RopeScaling::Kind::kLlama3, .factor = 5.0, .original_context = 3000, .fast = 6, .slow = 1};
  ASSERT_TRUE(WriteGgufModel(opened, folder.PathOf("x.gguf"), {}).ok());
  const OpenedModel after = Quantized(folder.PathOf("x.gguf"), folder.PathOf("out"), {.group = 32});
  EXPECT_EQ(after.config.rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(after.config.rope_scaling.original_context, 3000.0);
  EXPECT_EQ(after.config.rope_scaling.fast, 6.0);
  EXPECT_EQ(WhatDiffers(opened.config, after.config), "");
}

class FromGgufBlocks : public testing::Test {
 protected:
  FromGgufBlocks() {
    model_.hidden = 64;
    model_.head_dim = 16;
    model_.intermediate = 96;
    model_.Randomise(3);
    model_.WriteHuggingFace(source_);
    GgufModelOptions q8;
    q8.keep = {};
    EXPECT_TRUE(WriteGgufModel(OpenModel(source_.path(), {}).value(), gguf(), q8).ok());
  }
  std::string gguf() const { return folder_.PathOf("x.gguf"); }

  TinyModel model_;
  TempFolder source_;
  TempFolder folder_;
};

// Scales of what stood in blocks are f16, and so is what is kept of it: its numbers rounded once.
TEST_F(FromGgufBlocks, NumbersAreDecodedFirst) {
  const std::string out = folder_.PathOf("out");
  const OpenedModel before = OpenModel(gguf(), {}).value();
  const OpenedModel after = Quantized(gguf(), out, {.bits = 8, .group = 32});
  const auto was = ValuesOfTensor(before.weight_files->all().at("blk.1.ffn_down.weight"));
  const auto& all = after.weight_files->all();
  const FoundTensor &scales = all.at("model.layers.1.mlp.down_proj.weight_scale"),
                    &packed = all.at("model.layers.1.mlp.down_proj.weight_packed");
  EXPECT_EQ(scales.tensor->dtype_name, "F16");
  const std::vector<float> of_groups = ValuesOfTensor(scales);
  for (size_t group = 0; group < of_groups.size(); ++group) {
    const QuantizedGroup want = QuantizeGroup(std::span(was).subspan(group * 32, 32), 8, DType::kF16);
    ASSERT_EQ(of_groups[group], want.scale);
    for (size_t i = 0; i < 32; ++i)
      ASSERT_EQ(static_cast<int>(packed.data()[group * 32 + i]), want.integers[i] + 128) << group;
  }
  const auto embedding = ValuesOfTensor(before.weight_files->all().at("token_embd.weight"));
  const auto kept = ValuesOfTensor(all.at("model.embed_tokens.weight"));
  ASSERT_EQ(kept.size(), embedding.size());
  for (size_t i = 0; i < kept.size(); ++i) ASSERT_EQ(kept[i], F16ToFloat(FloatToF16(embedding[i])));
}

TEST_F(FromGgufBlocks, TheSameFileGivesTheSameBytes) {
  const auto bytes = [&](const std::string& out) {
    Quantized(gguf(), folder_.PathOf(out), {.bits = 4, .group = 32});
    std::string all;
    for (const char* name : {"/model.safetensors", "/config.json"}) {
      std::ifstream file(folder_.PathOf(out) + name, std::ios::binary);
      all += std::string(std::istreambuf_iterator<char>(file), {});
    }
    return all;
  };
  const std::string first = bytes("a");
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(bytes("b"), first);
}

TEST_F(FromGgufBlocks, WhatAConfigCannotSayIsRefusedByNameAndLeavesNothing) {
  const auto refusal = [&](const std::function<void(ModelConfig&)>& change) {
    OpenedModel model = OpenModel(gguf(), {}).value();
    change(model.config);
    const std::string out = folder_.PathOf("refused");
    const auto result = QuantizeModel(model, out, {.bits = 4, .group = 32});
    EXPECT_FALSE(std::filesystem::exists(out));
    return result.ok() ? "it was taken" : result.status().message();
  };
  EXPECT_THAT(refusal([](ModelConfig& config) {
                config.rope_scaling.kind = RopeScaling::Kind::kDivided;
                config.rope_scaling.divisors.assign(static_cast<size_t>(config.head_dim / 2), 3.0f);
                config.rope_scaling.divisors[0] = 2.0f;
              }),
              HasSubstr("rope_freqs.weight, which are no bands of Llama 3's"));
  EXPECT_THAT(refusal([](ModelConfig& config) {
                config.architecture = "Ministral3ForCausalLM";
                config.window[0] = 8;
              }),
              HasSubstr("windows on some layers of Ministral3ForCausalLM"));
  EXPECT_THAT(refusal([](ModelConfig& config) { config.query_scaling = {.beta = 0.1, .positions = 16}; }),
              HasSubstr("queries that are scaled without YaRN"));
}

// ---- tokenizers

class TokenizerFilesOfGguf : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerFilesOfGguf, GiveTextTheSameIds) {
  const std::string path = std::string(TRAMONTANE_SOURCE_DIR) + "/" + GetParam();
  const auto vocab_size = LoadTokenizer(path).value()->vocab_size();
  // Three more than the file has, which are of no text.
  const GgufKeys keys = MakeGgufTokenizerKeys(path, vocab_size + 3).value();
  const auto was = MakeGgufTokenizer(keys.Metadata("keys")).value();
  const auto files = MakeTokenizerFiles(keys.Metadata("keys"));
  ASSERT_TRUE(files.ok()) << files.status();
  const TempFolder folder;
  for (const auto& [name, bytes] : *files) folder.Write(name, bytes);
  const auto loaded = LoadTokenizer(folder.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Tokenizer& is = **loaded;
  EXPECT_EQ(is.bos_id(), was->bos_id());
  EXPECT_EQ(is.eos_id(), was->eos_id());
  EXPECT_EQ(is.adds_bos(), was->adds_bos());
  ASSERT_EQ(is.vocab_size(), vocab_size);
  for (int32_t id = 0; id < vocab_size; ++id) {
    ASSERT_EQ(is.IsControl(id), was->IsControl(id)) << id;
    ASSERT_EQ(is.PieceBytes(id), was->PieceBytes(id)) << id;
  }
  std::vector<std::string> texts = {"Hello  you",          "The year 1984, don't!",
                                    " a\n\n b\t",          "[INST] hi [/INST]</s>",
                                    "naïve Größe 世界 🙂", "x = f(a[0]) + 3.14\r\n"};
  std::mt19937 random(9);
  const std::string letters = "aabcdeeeimnorst  .,'\n10<>[]";
  for (int i = 0; i < 200; ++i) {
    std::string& text = texts.emplace_back();
    for (uint32_t k = 0; k < 1 + random() % 60; ++k) text += letters[random() % letters.size()];
  }
  for (const std::string& text : texts) {
    const auto ids = was->Encode(text).value();
    ASSERT_EQ(is.Encode(text).value(), ids) << text;
    ASSERT_EQ(is.EncodeWithControlTokens(text).value(), was->EncodeWithControlTokens(text).value()) << text;
    ASSERT_EQ(is.Decode(ids).value(), was->Decode(ids).value()) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TokenizerFilesOfGguf,
    testing::Values("tests/golden/chat_v7_tokenizer", "tests/golden/chat_tekken_tokenizer",
                    "models/breeze/weights", "tests/golden/tokenizer_json/gpt2",
                    "tests/golden/tokenizer_json/smollm", "tests/golden/tokenizer_json/qwen2",
                    "tests/golden/tokenizer_json/llama3", "tests/golden/tokenizer_json/tekken"),
    [](const auto& info) {
      std::string name = info.param;
      for (char& letter : name) letter = std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
      return name;
    });

// A tokenizer.model always has its first token in front of a text.
TEST(TokenizerFiles, WhatTheyCannotSayIsRefusedByName) {
  GgufKeys keys = MakeGgufTokenizerKeys(GoldenPath("chat_v7_tokenizer"), 1 << 17).value();
  keys.SetBool("tokenizer.ggml.add_bos_token", false);
  const auto files = MakeTokenizerFiles(keys.Metadata("x.gguf"));
  EXPECT_EQ(files.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(files.status().message(), AllOf(HasSubstr("x.gguf"), HasSubstr("tokenizer.model cannot say")));
}

}  // namespace
}  // namespace tramontane
