// A model written a second time in small integers: what is read back is the nearest that its groups can hold,
// what is kept is the same bytes, and compressed-tensors reads the same (tests/golden/quantize.json).
#include "models/quantized/quantize_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>

#include "kernels/core/block_types.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(FitsPattern, AStarStandsForAnything) {
  EXPECT_TRUE(FitsPattern("*", ""));
  EXPECT_TRUE(FitsPattern("*embed*", "model.embed_tokens.weight"));
  EXPECT_TRUE(FitsPattern("a*b*c", "a.b.b.c"));
  EXPECT_TRUE(FitsPattern("abc", "abc"));
  EXPECT_FALSE(FitsPattern("abc", "abcd"));
  EXPECT_FALSE(FitsPattern("output.*", "layers.0.output.weight"));
  EXPECT_FALSE(FitsPattern("a*b*c", "a.c.b"));
  EXPECT_FALSE(FitsPattern("", "a"));
}

TEST(QuantizeGroup, RoundsToTheNearestThatTheScaleHolds) {
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  for (const int32_t bits : {4, 8}) {
    const int top = (1 << (bits - 1)) - 1;
    for (const DType type : {DType::kF32, DType::kBf16, DType::kF16}) {
      std::vector<float> values(64);
      for (float& value : values) value = normal(random);
      const QuantizedGroup group = QuantizeGroup(values, bits, type);
      ASSERT_EQ(group.integers.size(), values.size());
      EXPECT_GT(group.scale, 0.0f);
      const float held = type == DType::kBf16  ? RoundToBf16(group.scale)
                         : type == DType::kF16 ? F16ToFloat(FloatToF16(group.scale))
                                               : group.scale;
      EXPECT_EQ(group.scale, held);
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_LE(group.integers[i], top);
        EXPECT_GE(group.integers[i], -top - 1);
        const float off = std::abs(values[i] - group.scale * static_cast<float>(group.integers[i]));
        const bool cut = group.integers[i] == top || group.integers[i] == -top - 1;
        EXPECT_LE(off, group.scale * (cut ? 1.5f : 0.5001f)) << values[i];
      }
    }
  }
}

TEST(QuantizeGroup, OfZerosIsZeros) {
  const QuantizedGroup group = QuantizeGroup(std::vector<float>(32), 4, DType::kF16);
  EXPECT_EQ(group.scale, 1.0f);
  EXPECT_EQ(group.integers, std::vector<int8_t>(32, 0));
}

class QuantizeModelTest : public testing::Test {
 protected:
  QuantizeModelTest() {
    model_.hidden = 64;
    model_.head_dim = 16;
    model_.intermediate = 96;
    model_.Randomise(3);
  }

  StatusOr<QuantizeResult> Quantize(const std::string& out, const QuantizeOptions& options) {
    TM_ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(source_.path(), {}));
    return QuantizeModel(opened, out, options);
  }
  std::string Out(const std::string& name) const { return folder_.PathOf(name); }

  TinyModel model_;
  TempFolder source_;
  TempFolder folder_;
};

// Every matrix of the model as it is now, by its name; plain ones are absent.
std::map<std::string, std::vector<float>> CodedValues(const OpenedModel& opened) {
  std::map<std::string, std::vector<float>> values;
  for (const WeightSpec& weight : opened.weights) {
    for (const TensorSpec& part : weight.parts) {
      const StoredWeight stored = opened.weight_files->Find(part).value();
      if (!stored.coded) continue;
      std::vector<std::byte> blocks(static_cast<size_t>(stored.format().Bytes(part.elements())));
      EXPECT_TRUE(stored.coded->Read(0, part.rows, blocks.data()).ok());
      std::vector<float>& of = values[part.name];
      of.resize(static_cast<size_t>(part.elements()));
      DecodeBlocks(stored.format(), blocks.data(), part.elements(), of.data());
    }
  }
  return values;
}

TEST_F(QuantizeModelTest, IsReadBackAsTheNearestNumbers) {
  for (const bool native : {false, true}) {
    TempFolder source;
    native ? model_.WriteMistral(source) : model_.WriteHuggingFace(source);
    source.Write("tokenizer.json", "{}");
    const OpenedModel before = OpenModel(source.path(), {}).value();
    for (const int32_t bits : {4, 8}) {
      const std::string out = Out(std::string(native ? "native" : "hf") + std::to_string(bits));
      const auto result = QuantizeModel(before, out, {.bits = bits, .group = 32});
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->quantised, 14);
      EXPECT_LT(result->bytes_after, result->bytes_before);
      EXPECT_EQ(ReadAll(out + "/tokenizer.json"), "{}");
      auto after = OpenModel(out, {});
      ASSERT_TRUE(after.ok()) << after.status();
      EXPECT_TRUE(CheckTensors(after->weights, *after->weight_files, after->config).ok());
      const auto values = CodedValues(*after);
      EXPECT_EQ(values.size(), 14u);
      for (const WeightSpec& weight : before.weights) {
        for (const TensorSpec& part : weight.parts) {
          const FoundTensor was = before.weight_files->Find(part).value().plain;
          const auto bytes = static_cast<size_t>(was.tensor->end - was.tensor->begin);
          if (values.count(part.name) == 0) {
            const FoundTensor is = after->weight_files->Find(part).value().plain;
            EXPECT_EQ(std::memcmp(is.data(), was.data(), bytes), 0) << part.name;
            continue;
          }
          std::vector<float> numbers(bytes / sizeof(float));
          std::memcpy(numbers.data(), was.data(), bytes);
          double off = 0.0, all = 0.0;
          for (size_t i = 0; i < numbers.size(); ++i) {
            off += std::pow(double{numbers[i]} - values.at(part.name)[i], 2);
            all += std::pow(double{numbers[i]}, 2);
          }
          // A step of a 7.5th of the largest of 32 normal numbers, 2.1 deviations, is off by 0.28 / sqrt(12).
          EXPECT_LT(std::sqrt(off / all), bits == 4 ? 0.12 : 0.008) << part.name;
          EXPECT_GT(std::sqrt(off / all), bits == 4 ? 0.02 : 0.001) << part.name;
        }
      }
    }
  }
}

TEST_F(QuantizeModelTest, TheSameModelGivesTheSameBytes) {
  model_.WriteHuggingFace(source_);
  for (const char* out : {"a", "b"}) ASSERT_TRUE(Quantize(Out(out), {.bits = 4, .group = 32}).ok());
  for (const char* file : {"/config.json", "/model.safetensors"}) {
    EXPECT_EQ(ReadAll(Out("a") + file), ReadAll(Out("b") + file));
    EXPECT_FALSE(ReadAll(Out("a") + file).empty());
  }
}

TEST_F(QuantizeModelTest, WhatIsKeptIsTheUsersWord) {
  model_.WriteHuggingFace(source_);
  ASSERT_TRUE(Quantize(Out("some"), {.bits = 8, .group = 32, .keep = {"*.mlp.*", "*embed*"}}).ok());
  const OpenedModel some = OpenModel(Out("some"), {}).value();
  const auto values = CodedValues(some);
  EXPECT_EQ(values.size(), 9u);
  EXPECT_EQ(values.count("lm_head.weight"), 1u);
  EXPECT_EQ(values.count("model.layers.0.mlp.up_proj.weight"), 0u);
  ASSERT_TRUE(Quantize(Out("all"), {.bits = 8, .group = 32, .keep = {}}).ok());
  EXPECT_EQ(CodedValues(OpenModel(Out("all"), {}).value()).size(), 16u);
  const json config = json::parse(ReadAll(Out("all") + "/config.json"))["quantization_config"];
  EXPECT_EQ(config["config_groups"]["group_0"]["targets"], json({"Linear", "Embedding"}));
  EXPECT_EQ(config["ignore"], json::array());
}

TEST_F(QuantizeModelTest, RoutersStay) {
  model_.experts = 4;
  model_.Randomise(4);
  model_.WriteHuggingFace(source_);
  ASSERT_TRUE(Quantize(Out("a"), {.bits = 4, .group = 32}).ok());
  const OpenedModel opened = OpenModel(Out("a"), {}).value();
  const auto values = CodedValues(opened);
  EXPECT_EQ(values.count("model.layers.0.block_sparse_moe.gate.weight"), 0u);
  EXPECT_EQ(values.count("model.layers.1.block_sparse_moe.experts.3.w2.weight"), 1u);
  EXPECT_EQ(values.size(), 2u * (4 + 4 * 3));
}

TEST_F(QuantizeModelTest, WhatCannotBeDoneIsSaidAndLeavesNothing) {
  model_.WriteHuggingFace(source_);
  EXPECT_THAT(Quantize(Out("a"), {.bits = 4, .group = 64}).status().message(),
              AllOf(HasSubstr("down_proj.weight has rows of 96"), HasSubstr("groups of 64")));
  EXPECT_FALSE(std::filesystem::exists(Out("a")));
  EXPECT_THAT(Quantize(Out("a"), {.bits = 4, .group = 32, .keep = {"*"}}).status().message(),
              HasSubstr("nothing to do"));
  std::filesystem::create_directory(Out("here"));
  folder_.Write("here/file", "mine");
  EXPECT_THAT(Quantize(Out("here"), {.bits = 4, .group = 32}).status().message(), HasSubstr("not empty"));
  EXPECT_EQ(ReadAll(Out("here") + "/file"), "mine");

  ASSERT_TRUE(Quantize(Out("a"), {.bits = 4, .group = 32}).ok());
  const OpenedModel quantised = OpenModel(Out("a"), {}).value();
  EXPECT_THAT(QuantizeModel(quantised, Out("b"), {}).status().message(), HasSubstr("quantised already"));

  model_.tensors.at("layers.1.feed_forward.w3.weight").values[70] = NAN;
  model_.WriteHuggingFace(source_);
  EXPECT_THAT(Quantize(Out("b"), {.bits = 4, .group = 32}).status().message(),
              AllOf(HasSubstr("up_proj.weight"), HasSubstr("not finite")));
  EXPECT_FALSE(std::filesystem::exists(Out("b")));
}

// What compressed-tensors makes of our files: make_quantize_goldens.py.
TEST_F(QuantizeModelTest, CompressedTensorsDecompressesTheSame) {
  const std::string goldens = std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/";
  const json runs = json::parse(ReadAll(goldens + "quantize.json"));
  EXPECT_EQ(runs.size(), 6u);
  for (const json& run : runs) {
    const OpenedModel model = OpenModel(goldens + run["model"].get<std::string>(), {}).value();
    const int32_t bits = run["type"] == "int4" ? 4 : 8;
    const std::string out = Out(run["model"].get<std::string>() + std::to_string(bits));
    ASSERT_TRUE(QuantizeModel(model, out, {.bits = bits, .group = run["group"], .keep = run["keep"]}).ok());
    const auto values = CodedValues(OpenModel(out, {}).value());
    EXPECT_EQ(values.size(), run["weights"].size());
    for (const auto& [name, hash] : run["weights"].items()) {
      std::vector<float> numbers = values.at(name);
      // It rounds to the type of the model.
      if (run["dtype"] == "bfloat16") {
        for (float& number : numbers) number = RoundToBf16(number);
      } else if (run["dtype"] == "float16") {
        for (float& number : numbers) number = F16ToFloat(FloatToF16(number));
      }
      unsigned char digest[SHA256_DIGEST_LENGTH];
      SHA256(reinterpret_cast<const unsigned char*>(numbers.data()), numbers.size() * sizeof(float), digest);
      std::string hex;
      for (const unsigned char byte : digest) {
        char text[4];
        std::snprintf(text, sizeof(text), "%02x", byte);
        hex += text;
      }
      EXPECT_EQ(hex, hash) << run["model"] << " " << name;
    }
  }
}

}  // namespace
}  // namespace tramontane
