// GGUF files as models: keys, tensors, folders, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "models/gguf/gguf_file.h"
#include "models/inspect.h"
#include "models/opened_model.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/small_gguf_model.h"
#include "tests/support/temp_folder.h"

namespace tramontane {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using gguf_key::Bool;
using gguf_key::Bools;
using gguf_key::Float;
using gguf_key::Text;
using gguf_key::Uint32;

struct SmallModel : SmallGgufModel {
  StatusOr<ModelConfig> Config() const {
    const std::string file = File();
    const auto contents = ParseGguf(file, "x.gguf");
    EXPECT_TRUE(contents.ok()) << contents.status();
    return ReadGgufConfig(contents->metadata);
  }
  std::string ConfigError() const { return Config().status().message(); }
  std::string OpenError() const {
    const TempFolder folder;
    folder.Write("x.gguf", File());
    return OpenModel(folder.PathOf("x.gguf"), {}).status().message();
  }
};

TEST(GgufConfig, ReadsTheKeysOfLlama) {
  const auto config = SmallModel().Config();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "LlamaForCausalLM");
  EXPECT_EQ(config->layout, FolderLayout::kGguf);
  EXPECT_EQ(config->rotary_style, RotaryStyle::kInterleaved);
  EXPECT_EQ(config->vocab_size, 5);
  EXPECT_EQ(config->hidden_size, 8);
  EXPECT_EQ(config->layers, 2);
  EXPECT_EQ(config->heads, 2);
  EXPECT_EQ(config->kv_heads, 1);
  EXPECT_EQ(config->head_dim, 4);
  EXPECT_EQ(config->intermediate_size, 12);
  EXPECT_EQ(config->experts, 0);
  EXPECT_FLOAT_EQ(config->rms_epsilon, 1e-5f);
  EXPECT_EQ(config->rope_theta, 10000.0);
  EXPECT_EQ(config->context, 64);
  EXPECT_THAT(config->window, ElementsAre(0, 0));
  EXPECT_THAT(config->eos_ids, ElementsAre(2));
  EXPECT_THAT(config->warnings, IsEmpty());
}

TEST(GgufConfig, TheTokenizerSaysTheVocabularyAndWhatEndsAnAnswer) {
  SmallModel model;
  model.keys["tokenizer.ggml.tokens"] = [](GgufWriter& writer, const std::string& key) {
    writer.AddStrings(key, {"a", "b", "c", "d", "e", "f"});
  };
  model.keys["tokenizer.ggml.bos_token_id"] = Uint32(0);
  model.keys["tokenizer.ggml.eos_token_id"] = Uint32(5);
  model.keys["tokenizer.ggml.eot_token_id"] = Uint32(4);
  model.keys["tokenizer.ggml.eom_token_id"] = Uint32(5);
  const auto config = model.Config();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 6);
  EXPECT_EQ(config->bos_id, 0);
  EXPECT_THAT(config->eos_ids, ElementsAre(5, 4));
  EXPECT_EQ(config->eos_source, "x.gguf");
  model.keys["tokenizer.ggml.eos_token_id"] = Uint32(6);
  EXPECT_THAT(model.ConfigError(), AllOf(HasSubstr("eos_token_id"), HasSubstr("is 6"), HasSubstr("0 to 5")));
}

// With --tokenizer such a file is served.
TEST(GgufConfig, WithoutATokenizerAndTheKeyTheEmbeddingSaysTheVocabulary) {
  SmallModel model;
  model.keys.erase("llama.vocab_size");
  const TempFolder folder;
  folder.Write("x.gguf", model.File());
  const auto opened = OpenModel(folder.PathOf("x.gguf"), {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->config.vocab_size, 5);
  EXPECT_THAT(model.ConfigError(), AllOf(HasSubstr("llama.vocab_size"), HasSubstr("no tokenizer")));
  model.tensors.erase("token_embd.weight");
  EXPECT_THAT(model.OpenError(), AllOf(HasSubstr("x.gguf"), HasSubstr("llama.vocab_size")));
}

TEST(GgufConfig, TheKeyOfTheVocabularyIsCheckedBesideTokensToo) {
  SmallModel model;
  model.keys["tokenizer.ggml.tokens"] = [](GgufWriter& writer, const std::string& key) {
    writer.AddStrings(key, {"a", "b", "c", "d", "e"});
  };
  model.keys["llama.vocab_size"] = Text("5");
  EXPECT_THAT(model.ConfigError(), AllOf(HasSubstr("llama.vocab_size"), HasSubstr("whole number")));
}

TEST(GgufConfig, KeyHeadsThatDoNotDivideTheHeadsAreNamedByTheirKey) {
  SmallModel model;
  model.keys["llama.attention.head_count_kv"] = Uint32(3);
  EXPECT_THAT(model.ConfigError(),
              AllOf(HasSubstr("llama.attention.head_count_kv"), HasSubstr("is 3"), HasSubstr("divisor")));
}

// llama.cpp writes what layers have as a number for each of them, where its converter was told so.
TEST(GgufConfig, EqualNumbersForEachLayerAreOneNumber) {
  const auto ints = [](std::vector<int32_t> numbers) {
    return [numbers](GgufWriter& writer, const std::string& key) {
      writer.AddArray(key, GgufKind::kInt32, numbers);
    };
  };
  SmallModel model;
  model.keys["llama.attention.head_count"] = ints({2, 2});
  model.keys["llama.attention.head_count_kv"] = ints({1, 1});
  model.keys["llama.feed_forward_length"] = ints({12, 12});
  const auto config = model.Config();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->heads, 2);
  EXPECT_EQ(config->kv_heads, 1);
  EXPECT_EQ(config->intermediate_size, 12);
  model.keys["llama.attention.head_count_kv"] = ints({1, 2});
  EXPECT_THAT(model.ConfigError(),
              AllOf(HasSubstr("llama.attention.head_count_kv"), HasSubstr("from 1 to 2")));
  for (const auto& wrong : {std::vector<int32_t>{1}, {1, 1, 1}, {}}) {
    model.keys["llama.attention.head_count_kv"] = ints(wrong);
    EXPECT_THAT(model.ConfigError(), HasSubstr("an array of block_count = 2 numbers")) << wrong.size();
  }
  model.keys["llama.attention.head_count_kv"] = ints({0, 0});
  EXPECT_THAT(model.ConfigError(), HasSubstr("is 0 at index 0"));
}

TEST(GgufConfig, WindowsAreOfAllLayersOrOfThoseOfThePattern) {
  SmallModel model;
  model.keys["llama.attention.sliding_window"] = Uint32(16);
  EXPECT_THAT(model.Config()->window, ElementsAre(16, 16));
  model.keys["llama.attention.sliding_window_pattern"] = Bools({0, 1});
  EXPECT_THAT(model.Config()->window, ElementsAre(0, 16));
  model.keys["llama.attention.sliding_window_pattern"] = Bools({1});
  EXPECT_THAT(model.ConfigError(), AllOf(HasSubstr("sliding_window_pattern"), HasSubstr("block_count = 2")));
  model.keys["llama.attention.sliding_window_pattern"] = Uint32(2);
  EXPECT_THAT(model.ConfigError(), AllOf(HasSubstr("sliding_window_pattern"), HasSubstr("array of bools")));
  model.keys["llama.attention.sliding_window_pattern"] = Bools({1, 0});
  model.keys.erase("llama.attention.sliding_window");
  EXPECT_THAT(model.ConfigError(), AllOf(HasSubstr("llama.attention.sliding_window"), HasSubstr("missing")));
}

TEST(GgufConfig, YarnIsReadWithItsMagnitudeAndTemperature) {
  SmallModel model;
  model.BeMistral3();
  model.keys["mistral3.rope.scaling.type"] = Text("yarn");
  model.keys["mistral3.rope.scaling.factor"] = Float(16.0f);
  model.keys["mistral3.rope.scaling.original_context_length"] = Uint32(16);
  model.keys["mistral3.rope.scaling.yarn_beta_fast"] = Float(30.0f);
  model.keys["mistral3.rope.scaling.yarn_beta_slow"] = Float(2.0f);
  model.keys["mistral3.rope.scaling.yarn_log_multiplier"] = Float(1.0f);
  model.keys["mistral3.attention.temperature_scale"] = Float(0.5f);
  const auto config = model.Config();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "Ministral3ForCausalLM");
  EXPECT_EQ(config->rope_scaling.kind, RopeScaling::Kind::kYarn);
  EXPECT_EQ(config->rope_scaling.factor, 16.0);
  EXPECT_EQ(config->rope_scaling.original_context, 16.0);
  EXPECT_EQ(config->rope_scaling.fast, 30.0);
  EXPECT_EQ(config->rope_scaling.slow, 2.0);
  EXPECT_EQ(config->rope_scaling.magnitude, 1.0) << "a multiplier of 1 leaves cos and sin as they are";
  EXPECT_EQ(config->query_scaling.beta, 0.5);
  EXPECT_EQ(config->query_scaling.positions, 16);
  EXPECT_THAT(config->warnings, IsEmpty());

  model.keys.erase("mistral3.rope.scaling.yarn_log_multiplier");
  EXPECT_NEAR(model.Config()->rope_scaling.magnitude, 1.0 + 0.1 * std::log(16.0), 1e-12);
  model.keys.erase("mistral3.rope.scaling.factor");
  EXPECT_THAT(model.ConfigError(), AllOf(HasSubstr("mistral3.rope.scaling.factor"), HasSubstr("missing")));
}

TEST(GgufConfig, MistypedAndAbsurdKeysAreRefusedByName) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const struct {
    const char* key;
    std::function<void(GgufWriter&, const std::string&)> add;
    const char* named;
  } cases[] = {
      {"llama.attention.layer_norm_rms_epsilon", Float(nan), "nan"},
      {"llama.attention.layer_norm_rms_epsilon", Float(0.0f), "is 0"},
      {"llama.attention.layer_norm_rms_epsilon", Float(7.0f), "is 7"},
      {"llama.attention.layer_norm_rms_epsilon", Uint32(1), "is 1"},
      {"llama.block_count", Uint32(~0u), "is 4294967295; it must be a whole number from 1 to 1024"},
      {"llama.block_count", Uint32(0), "is 0"},
      {"llama.block_count", Float(2.0f), "is 2"},
      {"llama.block_count", Text("2"), "is \"2\""},
      {"llama.embedding_length", Uint32(1u << 31), "is 2147483648"},
      {"llama.feed_forward_length", Uint32(0), "is 0"},
      {"llama.attention.head_count", Uint32(0), "is 0"},
      {"llama.attention.head_count_kv", Uint32(4097), "is 4097"},
      {"llama.context_length", Bool(true), "is true"},
      {"llama.vocab_size", Uint32(0), "is 0"},
      {"llama.rope.freq_base", Float(-nan), "nan"},
      {"llama.rope.freq_base", Float(0.0f), "is 0"},
      {"llama.rope.freq_base", Float(std::numeric_limits<float>::infinity()), "inf"},
      {"llama.rope.dimension_count", Uint32(2), "is 2: heads have 4 dimensions"},
      {"llama.attention.value_length", Uint32(8), "is 8: heads have 4 dimensions"},
      {"llama.attention.key_length", Uint32(0), "is 0"},
      {"llama.expert_count", Uint32(1u << 20), "is 1048576"},
      {"llama.rope.scaling.type", Text("longrope"), "is \"longrope\""},
      {"llama.rope.scaling.type", Text("yarn"), "llama.rope.scaling.factor\" is missing"},
      {"llama.rope.scaling.type", Uint32(1), "a string"},
      {"llama.rope.scaling.factor", Float(4.0f), "is 4: linear rope scaling"},
      {"llama.rope.scale_linear", Float(4.0f), "is 4: it changes the computation"},
      {"llama.attention.causal", Bool(false), "is false: it changes"},
      {"llama.attention.temperature_scale", Float(0.5f), "is 0.5: it changes"},
      {"llama.expert_shared_count", Uint32(1), "is 1: it changes"},
      {"llama.final_logit_softcapping", Float(30.0f), "is 30: it changes"},
      {"llama.attention.new_trick", Uint32(1), "not known"},
      {"general.architecture", Text("gemma3"), "\"gemma3\": this architecture is not implemented"},
      {"general.architecture", Uint32(1), "a string"},
      {"general.type", Text("adapter"), "\"adapter\""},
  };
  for (const auto& [key, add, named] : cases) {
    SmallModel model;
    model.keys[key] = add;
    EXPECT_THAT(model.ConfigError(), AllOf(HasSubstr("x.gguf"), HasSubstr(named))) << key;
    const std::string prefix = std::string(key).substr(0, std::string(key).find(".scaling.type"));
    EXPECT_THAT(model.ConfigError(), HasSubstr(prefix));
  }
}

TEST(GgufConfig, KeysThatMustBeThereAreNamedWhenMissing) {
  for (const char* key : {"general.architecture", "llama.vocab_size", "llama.context_length",
                          "llama.embedding_length", "llama.block_count", "llama.feed_forward_length",
                          "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon"}) {
    SmallModel model;
    model.keys.erase(key);
    EXPECT_THAT(model.ConfigError(), AllOf(HasSubstr(key), HasSubstr("missing")));
  }
  SmallModel model;
  model.keys.erase("llama.rope.freq_base");
  EXPECT_THAT(model.Config()->warnings, ElementsAre(AllOf(HasSubstr("rope.freq_base"), HasSubstr("10000"))));
}

TEST(GgufConfig, KeysWithoutEffectAreSilentAndUnknownOnesAWarning) {
  SmallModel model;
  model.keys["general.file_type"] = Uint32(7);
  model.keys["llama.attention.causal"] = Bool(true);
  model.keys["llama.rope.scaling.type"] = Text("none");
  model.keys["llama.expert_count"] = Uint32(0);
  model.keys["llama.attention.new_trick"] = Uint32(0);
  model.keys["quantize.imatrix.file"] = Text("x");
  model.keys["llama.tensor_data_layout"] = Text("Meta AI original pth");
  model.keys["ours.own"] = Uint32(1);
  const auto config = model.Config();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->warnings, ElementsAre(HasSubstr("llama.attention.new_trick"), HasSubstr("ours.own")));
}

// ---- tensors

TEST(GgufModel, EveryTensorIsUsed) { EXPECT_EQ(SmallModel().OpenError(), ""); }

TEST(GgufModel, ItsEmbeddingIsTiedWhereThereIsNoOutput) {
  SmallModel model;
  const TempFolder folder;
  folder.Write("separate.gguf", model.File());
  model.tensors.erase("output.weight");
  folder.Write("tied.gguf", model.File());
  EXPECT_FALSE(OpenModel(folder.PathOf("separate.gguf"), {})->config.tied_embeddings);
  EXPECT_TRUE(OpenModel(folder.PathOf("tied.gguf"), {})->config.tied_embeddings);
}

TEST(GgufModel, AMissingTensorIsNamedAsItShouldBe) {
  for (const auto& [name, dimensions] : SmallModel().tensors) {
    if (name == "output.weight") continue;
    SmallModel model;
    model.tensors.erase(name);
    model.tensors["something.else"] = dimensions;
    EXPECT_THAT(model.OpenError(), AllOf(HasSubstr("x.gguf"), HasSubstr("tensor " + name + " is missing")));
  }
}

TEST(GgufModel, ATensorThatNothingUsesIsRefused) {
  for (const char* name :
       {"blk.0.attn_q.bias", "blk.7.attn_q.weight", "output.bias", "rope_factors_long.weight"}) {
    SmallModel model;
    model.tensors[name] = {8};
    EXPECT_THAT(model.OpenError(), AllOf(HasSubstr(name), HasSubstr("no part of this architecture")));
  }
}

TEST(GgufModel, WrongShapesSayTheRightOnes) {
  SmallModel model;
  model.tensors["blk.1.ffn_down.weight"] = {8, 12};
  EXPECT_THAT(model.OpenError(), AllOf(HasSubstr("blk.1.ffn_down.weight"), HasSubstr("shape [12, 8]"),
                                       HasSubstr("must be [8, 12]")));
  model.tensors["blk.1.ffn_down.weight"] = {12, 8, 1};
  EXPECT_THAT(model.OpenError(), HasSubstr("shape [1, 8, 12]"));
}

SmallModel Mixture() {
  SmallModel model;
  model.keys["llama.expert_count"] = Uint32(3);
  model.keys["llama.expert_used_count"] = Uint32(2);
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    for (const std::string part : {"gate", "up", "down"}) {
      std::vector<uint64_t> dimensions = model.tensors[layer + "ffn_" + part + ".weight"];
      model.tensors.erase(layer + "ffn_" + part + ".weight");
      dimensions.push_back(3);
      model.tensors[layer + "ffn_" + part + "_exps.weight"] = dimensions;
    }
    model.tensors[layer + "ffn_gate_inp.weight"] = {8, 3};
  }
  return model;
}

TEST(GgufModel, ExpertsAreRowsOfAStack) {
  const SmallModel model = Mixture();
  EXPECT_EQ(model.OpenError(), "");
  const TempFolder folder;
  folder.Write("x.gguf", model.File());
  const auto opened = OpenModel(folder.path(), {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->config.architecture, "MixtralForCausalLM");
  EXPECT_EQ(opened->config.experts_per_token, 2);
  int found = 0;
  for (const WeightSpec& spec : opened->weights) {
    if (spec.key != WeightKey{WeightRole::kDown, 1, 2}) continue;
    ++found;
    EXPECT_EQ(spec.parts[0].name, "blk.1.ffn_down_exps.weight");
    EXPECT_EQ(spec.parts[0].rows, 3 * 8);
    EXPECT_EQ(spec.parts[0].slice.begin, 2 * 8);
    EXPECT_EQ(spec.parts[0].slice.end, 3 * 8);
  }
  EXPECT_EQ(found, 1);
}

TEST(GgufModel, AStackIsOfAllExperts) {
  SmallModel model = Mixture();
  model.tensors["blk.1.ffn_up_exps.weight"] = {8, 36};
  EXPECT_THAT(model.OpenError(), AllOf(HasSubstr("blk.1.ffn_up_exps.weight"), HasSubstr("shape [36, 8]"),
                                       HasSubstr("must be [3, 12, 8]")));
  model = Mixture();
  model.keys["llama.expert_used_count"] = Uint32(4);
  EXPECT_THAT(model.OpenError(),
              AllOf(HasSubstr("llama.expert_used_count"), HasSubstr("is 4"), HasSubstr("1 to 3")));
}

TEST(GgufModel, FrequenciesAreDividedByTheirTensor) {
  SmallModel model;
  model.tensors["rope_freqs.weight"] = {2};
  const TempFolder folder;
  folder.Write("x.gguf", model.File());
  const auto opened = OpenModel(folder.PathOf("x.gguf"), {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  const ModelConfig& config = opened->config;
  EXPECT_THAT(RotaryFrequencies(config.rope_theta, config.head_dim, config.rope_scaling),
              ElementsAre(2.0, 0.02));
  EXPECT_THAT(DescribeModel(*opened), HasSubstr("rope_freqs.weight"));

  model.tensors["rope_freqs.weight"] = {4};
  EXPECT_THAT(model.OpenError(),
              AllOf(HasSubstr("rope_freqs.weight"), HasSubstr("shape [4]"), HasSubstr("[2]")));
}

// ---- folders

TEST(GgufFolder, OneFileIsTheModelWhereNoOtherWeightsAre) {
  const TempFolder folder;
  folder.Write("m.gguf", SmallModel().File());
  folder.Write("mmproj-m.gguf", "");
  folder.Write("config.json", "{}");
  const auto files = FindModelFiles(folder.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->layout, FolderLayout::kGguf);
  EXPECT_THAT(files->weight_files, ElementsAre("m.gguf"));
  EXPECT_EQ(files->tokenizer, folder.PathOf("m.gguf"));
  EXPECT_EQ(FindModelFiles(folder.path(), {.tokenizer = "/elsewhere"})->tokenizer, "/elsewhere");

  folder.Write("model.safetensors", "");
  EXPECT_EQ(FindModelFiles(folder.path())->layout, FolderLayout::kHuggingFace);
  const auto asked = FindModelFiles(folder.path(), {.format = ModelFormat::kGguf, .tokenizer = ""});
  EXPECT_EQ(asked->layout, FolderLayout::kGguf);
  EXPECT_EQ(asked->why, "model_format is gguf");
}

TEST(GgufFolder, OfSeveralFilesOneMustBeNamed) {
  const TempFolder folder;
  folder.Write("a.gguf", "");
  folder.Write("b.gguf", "");
  EXPECT_THAT(FindModelFiles(folder.path()).status().message(),
              AllOf(HasSubstr("2 GGUF files"), HasSubstr("a.gguf"), HasSubstr("b.gguf")));
  EXPECT_THAT(FindModelFiles(folder.PathOf("b.gguf"))->weight_files, ElementsAre("b.gguf"));
}

TEST(GgufFolder, PartsAreOneModelAndAMissingOneIsNamed) {
  const TempFolder folder;
  folder.Write("m-00002-of-00003.gguf", "");
  folder.Write("m-00003-of-00003.gguf", "");
  const auto files = FindModelFiles(folder.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(files->weight_files,
              ElementsAre("m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"));
  EXPECT_THAT(OpenModel(folder.path(), {}).status().message(),
              AllOf(HasSubstr("m-00001-of-00003.gguf"), HasSubstr("missing")));
  EXPECT_THAT(OpenModel(folder.PathOf("m-00002-of-00003.gguf"), {}).status().message(),
              AllOf(HasSubstr("m-00002-of-00003.gguf"), HasSubstr("not the first part")));
}

TEST(GgufFolder, WithoutAnyTheFormatCannotBeAskedFor) {
  const TempFolder folder;
  EXPECT_THAT(
      FindModelFiles(folder.path(), {.format = ModelFormat::kGguf, .tokenizer = ""}).status().message(),
      AllOf(HasSubstr("model_format is gguf"), HasSubstr("no *.gguf is there")));
}

TEST(GgufFolder, TheTypeOfMostWeightsIsTheModels) {
  EXPECT_EQ(OpenModel(TRAMONTANE_SOURCE_DIR "/tests/golden/llama_gguf", {})->config.weight_dtype,
            DType::kF16);
  EXPECT_EQ(OpenModel(TRAMONTANE_SOURCE_DIR "/tests/golden/mixtral_gguf", {})->config.weight_dtype,
            DType::kBf16);
}

}  // namespace
}  // namespace tramontane
