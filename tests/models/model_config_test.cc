#include "models/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "models/model_folder.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

json MistralJson() {
  return json::parse(R"({
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 512, "hidden_size": 64,
    "intermediate_size": 172, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 16, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
    "rope_theta": 1e6, "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "bos_token_id": 1, "eos_token_id": 2, "use_cache": true, "initializer_range": 0.02,
    "attention_dropout": 0.0, "transformers_version": "4.40.0", "_name_or_path": "x", "pad_token_id": null})");
}

json LlamaJson() {
  json config = MistralJson();
  config["architectures"] = {"LlamaForCausalLM"};
  config["model_type"] = "llama";
  config.erase("sliding_window");
  config["attention_bias"] = false;
  config["mlp_bias"] = false;
  config["pretraining_tp"] = 1;
  config["rope_scaling"] = nullptr;
  return config;
}

json ParamsJson() {
  return json::parse(
      R"({"dim": 64, "n_layers": 4, "head_dim": 16, "hidden_dim": 172, "n_heads": 8, "n_kv_heads": 2,
    "norm_eps": 1e-5, "vocab_size": 512, "rope_theta": 1e6, "max_seq_len": 2048})");
}

StatusOr<ModelConfig> Parse(const json& config, const std::string& generation = "") {
  TM_ASSIGN_OR_RETURN(ModelConfig parsed, ParseHuggingFaceConfig(config.dump(), "config.json"));
  if (generation.empty()) return parsed;
  TM_RETURN_IF_ERROR(ReadGenerationConfig(generation, "generation_config.json", parsed));
  return parsed;
}
StatusOr<ModelConfig> ConfigOf(const std::string& folder) {
  TM_ASSIGN_OR_RETURN(const ModelFolder files, FindModelFiles(folder));
  return LoadModelConfig(files);
}
StatusOr<ModelConfig> ParseParams(const json& params) {
  return ParseMistralParams(params.dump(), "params.json");
}

TEST(ModelConfig, ReadsAHuggingFaceConfigWithoutWarnings) {
  const auto config = Parse(MistralJson());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "MistralForCausalLM");
  EXPECT_EQ(config->layout, FolderLayout::kHuggingFace);
  EXPECT_EQ(config->rotary_style, RotaryStyle::kHalfSplit);
  EXPECT_EQ(config->vocab_size, 512);
  EXPECT_EQ(config->hidden_size, 64);
  EXPECT_EQ(config->layers, 4);
  EXPECT_EQ(config->heads, 8);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->intermediate_size, 172);
  EXPECT_FLOAT_EQ(config->rms_epsilon, 1e-5f);
  EXPECT_EQ(config->rope_theta, 1e6);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_EQ(config->context, 2048);
  EXPECT_THAT(config->window, ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(config->weight_dtype, DType::kBf16);
  EXPECT_EQ(config->bos_id, 1);
  EXPECT_THAT(config->eos_ids, ElementsAre(2));
  EXPECT_THAT(config->warnings, IsEmpty());
}

TEST(ModelConfig, ReadsLlamaAndMinistralAndMistralsOwnParamsWithoutWarnings) {
  const auto llama = Parse(LlamaJson());
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->architecture, "LlamaForCausalLM");
  EXPECT_THAT(llama->warnings, IsEmpty());

  json ministral = MistralJson();
  ministral["architectures"] = {"MinistralForCausalLM"};
  ministral["model_type"] = "ministral";
  EXPECT_TRUE(Parse(ministral).ok());

  const auto params = ParseParams(ParamsJson());
  ASSERT_TRUE(params.ok()) << params.status();
  EXPECT_EQ(params->architecture, "MistralForCausalLM");
  EXPECT_EQ(params->layout, FolderLayout::kMistral);
  EXPECT_EQ(params->rotary_style, RotaryStyle::kInterleaved);
  EXPECT_EQ(params->hidden_size, 64);
  EXPECT_EQ(params->intermediate_size, 172);
  EXPECT_EQ(params->context, 2048);
  EXPECT_THAT(params->eos_ids, ElementsAre(2));
  EXPECT_EQ(params->bos_id, 1);
  EXPECT_THAT(params->warnings, IsEmpty());
}

json MixtralJson() {
  json config = MistralJson();
  config["architectures"] = {"MixtralForCausalLM"};
  config["model_type"] = "mixtral";
  config["num_local_experts"] = 8;
  config["num_experts_per_tok"] = 2;
  config["router_aux_loss_coef"] = 0.02;
  config["router_jitter_noise"] = 0.1;
  config["output_router_logits"] = true;
  return config;
}

TEST(ModelConfig, ReadsMixtureOfExpertsInBothFormatsWithoutWarnings) {
  json params = ParamsJson();
  params["moe"] = {{"num_experts", 8}, {"num_experts_per_tok", 2}};
  for (const auto& config : {Parse(MixtralJson()), ParseParams(params)}) {
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->architecture, "MixtralForCausalLM");
    EXPECT_EQ(config->experts, 8);
    EXPECT_EQ(config->experts_per_token, 2);
    EXPECT_THAT(config->window, ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(config->warnings, IsEmpty());
  }
  // No window by its class, though Mistral's has one.
  json config = MixtralJson();
  config.erase("sliding_window");
  EXPECT_THAT(Parse(config)->window, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(Parse(config)->warnings, IsEmpty());
  config["sliding_window"] = 128;
  EXPECT_THAT(Parse(config)->window, ElementsAre(128, 128, 128, 128));
  EXPECT_EQ(Parse(MistralJson())->experts, 0);
  // Nor the same theta.
  config.erase("rope_theta");
  EXPECT_EQ(Parse(config)->rope_theta, 1e6);
  EXPECT_THAT(Parse(config)->warnings, ElementsAre(HasSubstr("rope_theta is missing; 1000000 is taken")));
}

TEST(ModelConfig, CountsOfExpertsBeyondTheLimitsAreNamed) {
  for (const auto& [key, value, limit] : {std::tuple{"num_local_experts", 0, "1 to 256"},
                                          {"num_local_experts", 257, "1 to 256"},
                                          {"num_experts_per_tok", 0, "1 to 8"},
                                          {"num_experts_per_tok", 9, "1 to 8"}}) {
    json config = MixtralJson();
    config[key] = value;
    EXPECT_THAT(Parse(config).status().message(),
                AllOf(HasSubstr(key), HasSubstr(std::to_string(value)), HasSubstr(limit)));
    config.erase(key);
    EXPECT_THAT(Parse(config).status().message(), HasSubstr(std::string(key) + " is missing"));
  }
  json params = ParamsJson();
  params["moe"] = {{"num_experts", 4}, {"num_experts_per_tok", 5}};
  EXPECT_THAT(ParseParams(params).status().message(), HasSubstr("moe.num_experts_per_tok is 5"));
  params["moe"] = 8;
  EXPECT_THAT(ParseParams(params).status().message(), HasSubstr("moe is 8"));
}

TEST(ModelConfig, ReadsTheKeysOfNewerReleases) {
  json config = MistralJson();
  config.erase("rope_theta");
  config.erase("torch_dtype");
  config["dtype"] = "float32";
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 12345.0}};
  const auto parsed = Parse(config);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->rope_theta, 12345.0);
  EXPECT_EQ(parsed->weight_dtype, DType::kF32);
  EXPECT_THAT(parsed->warnings, IsEmpty());
}

TEST(ModelConfig, RopeThetaGivenTwiceMustAgree) {
  json config = MistralJson();
  config["rope_parameters"] = {{"rope_theta", 1e6}};
  EXPECT_TRUE(Parse(config).ok());
  config["rope_parameters"] = {{"rope_theta", 1e4}};
  EXPECT_THAT(Parse(config).status().message(), AllOf(HasSubstr("rope_theta"), HasSubstr("rope_parameters")));
}

TEST(ModelConfig, DefaultRopeScalingIsNoScaling) {
  for (const char* scaling : {"null", "{}", R"({"type": "default"})", R"({"rope_type": "default"})"}) {
    json config = MistralJson();
    config["rope_scaling"] = json::parse(scaling);
    EXPECT_TRUE(Parse(config).ok()) << scaling << ": " << Parse(config).status();
  }
}

// ---- stretched rotary embeddings ----------------------------------------------------------------

TEST(ModelConfig, ReadsLlamas3BandsFromEitherKey) {
  const json bands = {{"factor", 8.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 8192}};
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    for (const char* kind : {"type", "rope_type"}) {
      json config = LlamaJson();
      config[key] = bands;
      config[key][kind] = "llama3";
      const auto parsed = Parse(config);
      ASSERT_TRUE(parsed.ok()) << parsed.status();
      EXPECT_EQ(parsed->rope_scaling.kind, RopeScaling::Kind::kLlama3);
      EXPECT_EQ(parsed->rope_scaling.factor, 8.0);
      EXPECT_EQ(parsed->rope_scaling.slow, 1.0);
      EXPECT_EQ(parsed->rope_scaling.fast, 4.0);
      EXPECT_EQ(parsed->rope_scaling.original_context, 8192);
      EXPECT_EQ(parsed->rope_scaling.magnitude, 1.0);
      EXPECT_THAT(parsed->warnings, IsEmpty());
      config[key]["high_freq_factor"] = 1.0;
      EXPECT_THAT(Parse(config).status().message(), HasSubstr(std::string(key) + ".high_freq_factor is 1"));
      config[key].erase("high_freq_factor");
      EXPECT_THAT(Parse(config).status().message(),
                  HasSubstr(std::string(key) + ".high_freq_factor is miss"));
    }
  }
}

ModelConfig WithYarn(json yarn) {
  json config = MistralJson();
  yarn["rope_type"] = "yarn";
  config["rope_parameters"] = yarn;
  const auto parsed = Parse(config);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.value();
}

TEST(ModelConfig, YarnsMagnitudeIsGivenOrARatioOrThePapers) {
  const json plain = {{"factor", 16.0}, {"original_max_position_embeddings", 128}};
  const double papers = 0.1 * std::log(16.0) + 1.0;
  const auto magnitude = [&](const json& more) {
    json yarn = plain;
    yarn.update(more);
    return WithYarn(yarn).rope_scaling.magnitude;
  };
  EXPECT_DOUBLE_EQ(magnitude(json::object()), papers);
  EXPECT_DOUBLE_EQ(magnitude({{"attention_factor", 0.75}, {"mscale", 1.0}, {"mscale_all_dim", 1.0}}), 0.75);
  EXPECT_DOUBLE_EQ(magnitude({{"mscale", 1.0}, {"mscale_all_dim", 1.0}}), 1.0);
  EXPECT_DOUBLE_EQ(magnitude({{"mscale", 0.5}, {"mscale_all_dim", 1.0}}),
                   (0.05 * std::log(16.0) + 1.0) / papers);
  EXPECT_DOUBLE_EQ(magnitude({{"mscale", 0.5}}), papers);  // both or none
  EXPECT_DOUBLE_EQ(magnitude({{"mscale", 0.0}, {"mscale_all_dim", 1.0}}), papers);
  EXPECT_DOUBLE_EQ(magnitude({{"factor", 1.0}}), 1.0);
}

TEST(ModelConfig, WhatYarnLeavesOut) {
  const RopeScaling all_absent = WithYarn(json::object()).rope_scaling;
  EXPECT_EQ(all_absent.original_context, 2048);  // the model's
  EXPECT_EQ(all_absent.factor, 1.0);
  EXPECT_EQ(all_absent.fast, 32.0);
  EXPECT_EQ(all_absent.slow, 1.0);
  EXPECT_TRUE(all_absent.truncate);
  const RopeScaling given = WithYarn({{"original_max_position_embeddings", 256},
                                      {"beta_fast", 8.0},
                                      {"beta_slow", 2.0},
                                      {"truncate", false}})
                                .rope_scaling;
  EXPECT_EQ(given.factor, 8.0);  // 2048 over 256
  EXPECT_EQ(given.fast, 8.0);
  EXPECT_EQ(given.slow, 2.0);
  EXPECT_FALSE(given.truncate);
  EXPECT_EQ(WithYarn({{"finetuned", true}}).rope_scaling.kind, RopeScaling::Kind::kYarn);
}

// Ministral 3, Devstral Small 2, Large 3 and Small 4: the published values to nine digits.
TEST(RotaryFrequencies, OfReleasesWithYarn) {
  struct Case {
    int32_t head_dim;
    double theta, factor, original;
    std::vector<std::pair<size_t, double>> wanted;
  };
  for (const Case& c :
       {Case{128,
             1e6,
             16,
             16384,
             {{0, 1.0}, {21, 1.015346367e-2}, {28, 1.325179424e-3}, {63, 7.755861005e-8}}},
        Case{128,
             1e8,
             48,
             8192,
             {{0, 1.0}, {13, 2.192760622e-2}, {18, 3.082063032e-3}, {63, 2.778169650e-10}}},
        Case{64, 1e4, 36, 8192, {{0, 1.0}, {13, 2.194027382e-2}, {18, 3.100086793e-3}, {31, 3.704226200e-6}}},
        Case{64,
             1e4,
             128,
             8192,
             {{0, 1.0}, {13, 2.190385448e-2}, {18, 3.048268482e-3}, {31, 1.041813619e-6}}}}) {
    const RopeScaling scaling = {.kind = RopeScaling::Kind::kYarn,
                                 .factor = c.factor,
                                 .original_context = c.original,
                                 .fast = 32,
                                 .slow = 1};
    const std::vector<double> frequencies = RotaryFrequencies(c.theta, c.head_dim, scaling);
    ASSERT_EQ(frequencies.size(), static_cast<size_t>(c.head_dim / 2));
    for (const auto& [pair, value] : c.wanted) {
      EXPECT_NEAR(frequencies[pair] / value, 1.0, 1e-8) << "theta " << c.theta << " pair " << pair;
    }
  }
}

TEST(ModelConfig, Ministral3ScalesItsQueriesAndNoOtherClassDoes) {
  json config = MistralJson();
  config["architectures"] = {"Ministral3ForCausalLM"};
  config["model_type"] = "ministral3";
  config.erase("rope_theta");
  EXPECT_THAT(Parse(config).status().message(), HasSubstr("rope_parameters is missing"));
  config["rope_parameters"] = {{"rope_type", "yarn"},
                               {"rope_theta", 1e6},
                               {"factor", 16.0},
                               {"original_max_position_embeddings", 16384},
                               {"max_position_embeddings", 262144},
                               {"mscale", 1.0},
                               {"mscale_all_dim", 1.0},
                               {"llama_4_scaling_beta", 0.1}};
  const auto parsed = Parse(config);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->query_scaling.beta, 0.1);
  EXPECT_EQ(parsed->query_scaling.positions, 16384);
  EXPECT_EQ(parsed->rope_scaling.magnitude, 1.0);
  EXPECT_THAT(parsed->warnings, IsEmpty());
  config["architectures"] = {"MistralForCausalLM"};
  config["model_type"] = "mistral";
  EXPECT_THAT(Parse(config).status().message(), HasSubstr("rope_parameters.llama_4_scaling_beta"));
}

TEST(ModelConfig, MistralsOwnYarnHasAMagnitudeUnlessItSaysNo) {
  json params = ParamsJson();
  params["yarn"] = {{"original_max_position_embeddings", 8192},
                    {"factor", 48.0},
                    {"beta", 16.0},
                    {"alpha", 2.0},
                    {"apply_scale", false}};
  params["llama_4_scaling"] = {{"original_max_position_embeddings", 4096}, {"beta", 0.2}};
  const auto parsed = ParseParams(params);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const RopeScaling& scaling = parsed->rope_scaling;
  EXPECT_EQ(scaling.kind, RopeScaling::Kind::kYarn);
  EXPECT_EQ(scaling.original_context, 8192);
  EXPECT_EQ(scaling.factor, 48.0);
  EXPECT_EQ(scaling.fast, 16.0);
  EXPECT_EQ(scaling.slow, 2.0);
  EXPECT_EQ(scaling.magnitude, 1.0);
  EXPECT_EQ(parsed->query_scaling.beta, 0.2);
  EXPECT_EQ(parsed->query_scaling.positions, 4096);
  EXPECT_THAT(parsed->warnings, IsEmpty());
  params["yarn"]["apply_scale"] = true;
  EXPECT_DOUBLE_EQ(ParseParams(params)->rope_scaling.magnitude, 0.1 * std::log(48.0) + 1.0);
  params["yarn"].erase("apply_scale");
  EXPECT_DOUBLE_EQ(ParseParams(params)->rope_scaling.magnitude, 0.1 * std::log(48.0) + 1.0);
  EXPECT_THAT(ParseParams(params)->warnings,
              ElementsAre(AllOf(HasSubstr("yarn.apply_scale is missing"), HasSubstr("true"))));
  params["yarn"]["apply_scale"] = nullptr;
  EXPECT_THAT(ParseParams(params)->warnings, ElementsAre(HasSubstr("yarn.apply_scale is missing")));
  params["yarn"]["gamma"] = 2;
  EXPECT_THAT(ParseParams(params).status().message(), HasSubstr("yarn.gamma"));
}

// ---- releases, by the dimensions that they were published with -----------------------------------

TEST(ModelConfig, NemoHasAHeadDimThatIsNotHiddenOverHeads) {
  json config = MistralJson();
  config.update({{"hidden_size", 5120},
                 {"num_hidden_layers", 40},
                 {"num_attention_heads", 32},
                 {"num_key_value_heads", 8},
                 {"head_dim", 128},
                 {"intermediate_size", 14336},
                 {"vocab_size", 131072},
                 {"max_position_embeddings", 131072}});
  const auto parsed = Parse(config);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->head_dim, 128);  // 5120 / 32 is 160
  EXPECT_EQ(parsed->vocab_size, 131072);
  EXPECT_THAT(parsed->window, Each(0));
  EXPECT_THAT(parsed->warnings, IsEmpty());
}

TEST(ModelConfig, Ministral8BHasAWindowOnThreeLayersOfFour) {
  json params = {{"dim", 4096},       {"n_layers", 36},       {"head_dim", 128},  {"hidden_dim", 12288},
                 {"n_heads", 32},     {"n_kv_heads", 8},      {"norm_eps", 1e-5}, {"vocab_size", 131072},
                 {"rope_theta", 1e8}, {"max_seq_len", 131072}};
  params["_sliding_window"] = {nullptr, 32768, 32768, 32768};
  json config = MistralJson();
  config.update({{"hidden_size", 4096},
                 {"num_hidden_layers", 36},
                 {"num_attention_heads", 32},
                 {"num_key_value_heads", 8},
                 {"head_dim", 128},
                 {"intermediate_size", 12288},
                 {"vocab_size", 131072},
                 {"max_position_embeddings", 131072},
                 {"rope_theta", 1e8},
                 {"sliding_window", 32768},
                 {"model_type", "ministral"}});
  config["architectures"] = {"MinistralForCausalLM"};
  config["layer_types"] = json::array();
  std::vector<int32_t> wanted;
  for (int layer = 0; layer < 36; ++layer) {
    config["layer_types"].push_back(layer % 4 == 0 ? "full_attention" : "sliding_attention");
    wanted.push_back(layer % 4 == 0 ? 0 : 32768);
  }
  for (const auto& parsed : {ParseParams(params), Parse(config)}) {
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->window, wanted);
    EXPECT_EQ(parsed->rope_theta, 1e8);
    EXPECT_THAT(parsed->warnings, IsEmpty());
  }
}

// ---- models for text and images -----------------------------------------------------------------

json WrapperJson() {
  json text = MistralJson();
  for (const char* key : {"architectures", "torch_dtype", "_name_or_path", "transformers_version"})
    text.erase(key);
  return {{"architectures", {"Mistral3ForConditionalGeneration"}},
          {"model_type", "mistral3"},
          {"image_token_index", 10},
          {"multimodal_projector_bias", false},
          {"projector_hidden_act", "gelu"},
          {"spatial_merge_size", 2},
          {"vision_feature_layer", -1},
          {"torch_dtype", "float16"},
          {"text_config", text},
          {"vision_config", {{"model_type", "pixtral"}, {"hidden_size", 1024}, {"hidden_act", "gelu"}}}};
}

TEST(ModelConfig, TheTextPartOfAModelForImagesIsRead) {
  const auto config = Parse(WrapperJson(), R"({"eos_token_id": [2, 5]})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->wrapper, "Mistral3ForConditionalGeneration");
  EXPECT_EQ(config->architecture, "MistralForCausalLM");
  EXPECT_EQ(config->hidden_size, 64);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->weight_dtype, DType::kF16);
  EXPECT_THAT(config->eos_ids, ElementsAre(2, 5));
  EXPECT_THAT(config->warnings, IsEmpty());
}

TEST(ModelConfig, FaultsOfTheTextPartNameTheirPlace) {
  json config = WrapperJson();
  config["text_config"]["hidden_size"] = -1;
  EXPECT_THAT(Parse(config).status().message(), HasSubstr("text_config.hidden_size is -1"));
  config = WrapperJson();
  config["text_config"]["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_THAT(Parse(config).status().message(), HasSubstr("text_config.rope_scaling.type is \"linear\""));
  config = WrapperJson();
  config.erase("text_config");
  EXPECT_THAT(Parse(config).status().message(), HasSubstr("text_config is missing"));
  config = WrapperJson();
  config["quantization_config"] = {{"quant_method", "hqq"}};
  EXPECT_THAT(Parse(config).status().message(), HasSubstr("quantization_config.quant_method is \"hqq\""));
  config = WrapperJson();
  config["text_config"]["quantization_config"] = {{"quant_method", "hqq"}};
  EXPECT_THAT(Parse(config).status().message(),
              HasSubstr("text_config.quantization_config.quant_method is \"hqq\""));
  config = WrapperJson();
  config["text_config"]["model_type"] = "mistral4";
  EXPECT_THAT(Parse(config).status().message(), AllOf(HasSubstr("mistral4"), HasSubstr("latent attention")));
}

// A model is refused for what it is, not for a number that models of its kind leave out.
TEST(ModelConfig, LatentAttentionIsRefusedBeforeMissingDimensions) {
  json params = ParamsJson();
  for (const char* key : {"head_dim", "hidden_dim", "n_kv_heads"}) params.erase(key);
  params["q_lora_rank"] = 1536;
  params["moe"] = {{"num_experts", 128}};
  EXPECT_THAT(ParseParams(params).status().message(),
              AllOf(HasSubstr("q_lora_rank is 1536"), HasSubstr("latent attention (MLA)")));
}

TEST(ModelConfig, MissingHeadDimIsHiddenOverHeadsIfThatIsWhole) {
  json config = MistralJson();
  config["head_dim"] = nullptr;
  EXPECT_EQ(Parse(config)->head_dim, 8);
  config.erase("head_dim");
  EXPECT_EQ(Parse(config)->head_dim, 8);
  config["hidden_size"] = 68;
  EXPECT_THAT(Parse(config).status().message(), HasSubstr("head_dim"));
}

TEST(ModelConfig, AThetaWhoseFrequenciesWouldBeNoNumbersIsRefused) {
  json config = MistralJson();
  config["rope_theta"] = 1e-320;
  EXPECT_THAT(Parse(config).status().message(), HasSubstr("rope_theta is 1e-320; it must be a number above"));
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e-320}};
  EXPECT_THAT(Parse(config).status().message(), HasSubstr("rope_parameters.rope_theta is 1e-320"));
  json params = ParamsJson();
  params["rope_theta"] = 1e-320;
  EXPECT_THAT(ParseParams(params).status().message(), HasSubstr("rope_theta is 1e-320"));
}

TEST(ModelConfig, MissingRopeThetaIsTakenFromTheFormatAndWarned) {
  json config = MistralJson();
  config.erase("rope_theta");
  EXPECT_EQ(Parse(config)->rope_theta, 1e4);
  EXPECT_THAT(Parse(config)->warnings, ElementsAre(HasSubstr("rope_theta is missing")));

  json params = ParamsJson();
  params.erase("rope_theta");
  EXPECT_EQ(ParseParams(params)->rope_theta, 1e6);
  EXPECT_THAT(ParseParams(params)->warnings, ElementsAre(HasSubstr("rope_theta is missing")));
  params["sliding_window"] = 256;
  EXPECT_EQ(ParseParams(params)->rope_theta, 1e4);
}

// ---- windows ------------------------------------------------------------------------------------

TEST(ModelConfig, SlidingWindowHoldsForAllLayersOrNone) {
  json config = MistralJson();
  config["sliding_window"] = 256;
  EXPECT_THAT(Parse(config)->window, ElementsAre(256, 256, 256, 256));
  config["use_sliding_window"] = false;
  EXPECT_THAT(Parse(config)->window, ElementsAre(0, 0, 0, 0));
}

// Absent is not null: transformers' classes have defaults of their own.
TEST(ModelConfig, AnAbsentWindowIsItsClassesDefaultAndSaysWhich) {
  struct Case {
    const char* name;
    const char* type;
    int32_t window;
  };
  for (const auto& [name, type, window] :
       {Case{"MistralForCausalLM", "mistral", 4096}, Case{"MinistralForCausalLM", "ministral", 4096},
        Case{"Ministral3ForCausalLM", "ministral3", 0}, Case{"LlamaForCausalLM", "llama", 0}}) {
    json config = MistralJson();
    config["architectures"] = {name};
    config["model_type"] = type;
    config.erase("rope_theta");
    config["rope_parameters"] = {{"rope_theta", 1e6}};
    EXPECT_THAT(Parse(config)->window, Each(0)) << name;
    EXPECT_THAT(Parse(config)->warnings, IsEmpty()) << name;
    config.erase("sliding_window");
    const auto parsed = Parse(config);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_THAT(parsed->window, Each(window)) << name;
    if (window == 0) {
      EXPECT_THAT(parsed->warnings, IsEmpty());
    } else {
      EXPECT_THAT(parsed->warnings, ElementsAre(AllOf(HasSubstr("sliding_window is missing"),
                                                      HasSubstr("4096"), HasSubstr(name))));
    }
  }
}

TEST(ModelConfig, AWindowBesideTheVocabularyOfModelsWithoutOneIsHonouredWithAWarning) {
  json config = MistralJson();
  config["sliding_window"] = 4096;
  EXPECT_THAT(Parse(config)->warnings, IsEmpty());
  config["vocab_size"] = 32768;
  EXPECT_THAT(Parse(config)->window, Each(4096));
  EXPECT_THAT(Parse(config)->warnings, ElementsAre(AllOf(HasSubstr("4096"), HasSubstr("32768"))));
}

TEST(ModelConfig, LayerTypesGiveAWindowPerLayer) {
  json config = MistralJson();
  config["architectures"] = {"MinistralForCausalLM"};
  config["model_type"] = "ministral";
  config["sliding_window"] = 256;
  config["layer_types"] = {"full_attention", "sliding_attention", "sliding_attention", "sliding_attention"};
  EXPECT_THAT(Parse(config)->window, ElementsAre(0, 256, 256, 256));

  config["layer_types"] = {"full_attention"};
  EXPECT_THAT(Parse(config).status().message(), AllOf(HasSubstr("layer_types"), HasSubstr("= 4")));
  config["layer_types"] = {"full_attention", "chunked_attention", "full_attention", "full_attention"};
  EXPECT_THAT(Parse(config).status().message(),
              AllOf(HasSubstr("layer_types"), HasSubstr("chunked_attention")));
  config["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  config["sliding_window"] = nullptr;
  EXPECT_THAT(Parse(config).status().message(), HasSubstr("sliding_window is missing"));
}

// As transformers does: these classes have layers of one kind, whatever the list says.
TEST(ModelConfig, LayerTypesAreIgnoredByClassesThatHaveNone) {
  for (const auto& [name, type] :
       {std::pair{"MistralForCausalLM", "mistral"}, std::pair{"Ministral3ForCausalLM", "ministral3"}}) {
    json config = MistralJson();
    config["architectures"] = {name};
    config["model_type"] = type;
    config.erase("rope_theta");
    config["rope_parameters"] = {{"rope_theta", 1e6}};
    config["sliding_window"] = 256;
    config["layer_types"] = json(4, "sliding_attention");
    EXPECT_THAT(Parse(config)->warnings, IsEmpty()) << name;
    config["layer_types"][0] = "full_attention";
    EXPECT_THAT(Parse(config)->window, Each(256)) << name;
    EXPECT_THAT(Parse(config)->warnings, ElementsAre(AllOf(HasSubstr("layer_types"), HasSubstr(name))));
  }
}

TEST(ModelConfig, FromWhichLayerOnAWindowHoldsMattersWhereThereIsOne) {
  json config = MistralJson();
  config["sliding_window"] = 32;
  config["max_window_layers"] = 28;
  EXPECT_THAT(Parse(config).status().message(), HasSubstr("max_window_layers is 28"));
  config["use_sliding_window"] = true;
  EXPECT_FALSE(Parse(config).ok());
  config["use_sliding_window"] = false;
  EXPECT_THAT(Parse(config)->window, testing::Each(0));
  config.erase("use_sliding_window");
  config["max_window_layers"] = 0;
  EXPECT_THAT(Parse(config)->window, testing::Each(32)) << "from the first on";
  json llama = LlamaJson();
  llama["use_sliding_window"] = false;
  llama["max_window_layers"] = 28;
  EXPECT_TRUE(Parse(llama).ok()) << Parse(llama).status();
}

TEST(ModelConfig, LlamaHasNoWindowAndSaysSo) {
  json config = LlamaJson();
  config["sliding_window"] = 4096;
  const auto parsed = Parse(config);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(parsed->window, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(parsed->warnings, ElementsAre(AllOf(HasSubstr("sliding_window"), HasSubstr("4096"))));
  config["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  EXPECT_THAT(Parse(config).status().message(), HasSubstr("layer_types"));
}

TEST(ModelConfig, MistralsOwnWindowIsANumberATextOrARepeatedList) {
  json params = ParamsJson();
  params["sliding_window"] = 256;
  EXPECT_THAT(ParseParams(params)->window, ElementsAre(256, 256, 256, 256));
  params["sliding_window"] = "256";
  EXPECT_THAT(ParseParams(params)->window, ElementsAre(256, 256, 256, 256));
  params["sliding_window"] = {nullptr, 256};
  EXPECT_THAT(ParseParams(params)->window, ElementsAre(0, 256, 0, 256));
  params["sliding_window"] = nullptr;
  params["_sliding_window"] = {nullptr, 8, 8, 16};
  EXPECT_THAT(ParseParams(params)->window, ElementsAre(0, 8, 8, 16));
  params["sliding_window"] = 256;
  EXPECT_THAT(ParseParams(params).status().message(), HasSubstr("_sliding_window"));
}

TEST(ModelConfig, MistralsOwnWindowListMustFitTheLayers) {
  for (const char* wrong :
       {"[1, 2, 3]", "[]", "[0]", "[-4]", "[1.5]", "\"4k\"", "\"\"", "\"-1\"", "true", "{}", "0"}) {
    json params = ParamsJson();
    params["sliding_window"] = json::parse(wrong);
    EXPECT_THAT(ParseParams(params).status().message(), HasSubstr("sliding_window")) << wrong;
  }
}

TEST(ModelConfig, MoreDifferentWindowsThanGroupsAreRefused) {
  json params = ParamsJson();
  params["n_layers"] = 17;
  for (int i = 1; i <= 17; ++i) params["sliding_window"].push_back(i);
  EXPECT_THAT(ParseParams(params).status().message(), AllOf(HasSubstr("17"), HasSubstr("16")));
}

// ---- special ids and defaults -------------------------------------------------------------------

TEST(ModelConfig, EndOfSequenceIsANumberOrAListAndGenerationConfigWins) {
  json config = MistralJson();
  config["eos_token_id"] = {2, 7};
  EXPECT_THAT(Parse(config)->eos_ids, ElementsAre(2, 7));
  EXPECT_THAT(Parse(config, R"({"eos_token_id": 9, "bos_token_id": 3})")->eos_ids, ElementsAre(9));
  EXPECT_EQ(Parse(config, R"({"eos_token_id": 9, "bos_token_id": 3})")->bos_id, 3);
  config["eos_token_id"] = nullptr;
  EXPECT_THAT(Parse(config)->eos_ids, IsEmpty());
  for (const char* wrong : {"512", "-1", "[2, 512]", "\"2\"", "2.5", "true", "{}"}) {
    config["eos_token_id"] = json::parse(wrong);
    EXPECT_THAT(Parse(config).status().message(), HasSubstr("eos_token_id")) << wrong;
  }
}

TEST(ModelConfig, SamplingDefaultsComeFromGenerationConfig) {
  const auto config =
      Parse(MistralJson(), R"({"temperature": 0.7, "top_p": 0.9, "top_k": 50, "do_sample": true})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->defaults.has_temperature);
  EXPECT_FLOAT_EQ(config->defaults.temperature, 0.7f);
  EXPECT_FLOAT_EQ(config->defaults.top_p, 0.9f);
  EXPECT_EQ(config->defaults.top_k, 50);
  EXPECT_EQ(config->defaults.min_p, 0.0f);
  EXPECT_EQ(config->defaults.repetition_penalty, 1.0f);
  const auto others = Parse(MistralJson(), R"({"min_p": 0.1, "repetition_penalty": 1.05, "top_k": -1})");
  ASSERT_TRUE(others.ok()) << others.status();
  EXPECT_FLOAT_EQ(others->defaults.min_p, 0.1f);
  EXPECT_FLOAT_EQ(others->defaults.repetition_penalty, 1.05f);
  EXPECT_EQ(others->defaults.top_k, -1);
  EXPECT_FALSE(Parse(MistralJson())->defaults.has_temperature);
  for (const char* wrong : {R"({"temperature": -1})", R"({"temperature": "hot"})", R"({"top_p": 0})",
                            R"({"top_p": 1.5})", R"({"top_k": -2})", R"({"min_p": -0.1})",
                            R"({"repetition_penalty": 0})", R"({"top_k": 1.5})", "[]", "{"}) {
    EXPECT_THAT(Parse(MistralJson(), wrong).status().message(), HasSubstr("generation_config.json")) << wrong;
  }
}

TEST(ModelConfig, WhatGenerationConfigAsksForBesidesIsAWarningUnlessItChangesNothing) {
  const auto neutral = Parse(MistralJson(), R"({"num_beams": 1, "no_repeat_ngram_size": 0, "typical_p": 1.0,
      "suppress_tokens": null, "max_length": 4096, "do_sample": true, "pad_token_id": 0})");
  ASSERT_TRUE(neutral.ok()) << neutral.status();
  EXPECT_THAT(neutral->warnings, IsEmpty());
  const auto asking =
      Parse(MistralJson(), R"({"num_beams": 4, "no_repeat_ngram_size": 3, "suppress_tokens": [7]})");
  ASSERT_TRUE(asking.ok()) << asking.status();
  EXPECT_THAT(asking->warnings,
              UnorderedElementsAre(HasSubstr("num_beams is 4"), HasSubstr("no_repeat_ngram_size is 3"),
                                   HasSubstr("suppress_tokens is [7]")));
}

// ---- refusals -----------------------------------------------------------------------------------

struct Refused {
  const char* key;
  const char* value;
  const char* named;  // what the message must name
};
std::ostream& operator<<(std::ostream& out, const Refused& r) { return out << r.key << " = " << r.value; }

class KeyThatChangesTheComputation : public testing::TestWithParam<Refused> {};

TEST_P(KeyThatChangesTheComputation, IsRefusedByNameAndValue) {
  for (json config : {MistralJson(), LlamaJson()}) {
    config[GetParam().key] = json::parse(GetParam().value);
    const auto parsed = Parse(config);
    ASSERT_FALSE(parsed.ok());
    EXPECT_EQ(parsed.status().code(), StatusCode::kUnimplemented) << parsed.status();
    EXPECT_THAT(parsed.status().message(),
                AllOf(HasSubstr("config.json"), HasSubstr(GetParam().key), HasSubstr(GetParam().named)));
  }
}

TEST_P(KeyThatChangesTheComputation, IsSilentWhenNull) {
  json config = MistralJson();
  config[GetParam().key] = nullptr;
  if (std::string(GetParam().key) == "architectures") config["architectures"] = {"MistralForCausalLM"};
  const auto parsed = Parse(config);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const bool listed = std::string(GetParam().key).find("made_up") == std::string::npos;
  EXPECT_EQ(parsed->warnings.size(), listed ? 0u : 1u);
}

INSTANTIATE_TEST_SUITE_P(
    HuggingFace, KeyThatChangesTheComputation,
    testing::Values(
        Refused{"rope_scaling", R"({"type": "linear", "factor": 2.0})", "rope_scaling."},
        Refused{"rope_scaling", R"({"rope_type": "longrope"})", "longrope"},
        Refused{"rope_scaling", R"({"rope_type": "dynamic"})", "dynamic"},
        Refused{"rope_scaling", R"({"factor": 4.0})", "rope_scaling.factor"},
        Refused{"rope_parameters", R"({"rope_type": "yarn", "rope_theta": 1e6, "twist": 2})",
                "rope_parameters.twist"},
        Refused{"rope_parameters", R"({"rope_theta": 1e6, "factor": 16.0})", "rope_parameters.factor"},
        Refused{"rope_parameters", R"({"rope_theta": 1e6, "llama_4_scaling_beta": 0.1})",
                "llama_4_scaling_beta"},
        Refused{"rope_parameters", R"({"rope_theta": 1e6, "partial_rotary_factor": 0.5})",
                "partial_rotary_factor"},
        Refused{"rope_parameters", R"({"full_attention": {"rope_theta": 1e6}})", "full_attention"},
        Refused{"architectures", R"(["Qwen3MoeForCausalLM"])", "Qwen3Moe"},
        Refused{"architectures", R"(["Mistral4ForCausalLM"])", "Mistral4"},
        Refused{"architectures", R"(["MambaForCausalLM"])", "Mamba"},
        Refused{"model_type", "\"mixtral\"", "mixtral"}, Refused{"attention_bias", "true", "true"},
        Refused{"mlp_bias", "true", "true"}, Refused{"use_bias", "true", "true"},
        Refused{"use_biases", "true", "true"}, Refused{"bias", "true", "true"},
        Refused{"qkv_bias", "true", "true"}, Refused{"lm_head_bias", "true", "true"},
        Refused{"hidden_act", "\"gelu\"", "gelu"},
        Refused{"hidden_activation", "\"gelu_pytorch_tanh\"", "gelu"},
        Refused{"activation", "\"relu\"", "relu"}, Refused{"activation_function", "\"gelu_new\"", "gelu_new"},
        Refused{"use_qk_norm", "true", "true"}, Refused{"qk_norm", "true", "true"},
        Refused{"qk_layernorm", "true", "true"}, Refused{"norm_type", "\"layer_norm\"", "layer_norm"},
        Refused{"ada_rms_norm_t_cond", "true", "true"}, Refused{"partial_rotary_factor", "0.5", "0.5"},
        Refused{"rotary_pct", "0.25", "0.25"}, Refused{"rotary_dim", "8", "8"},
        Refused{"rope_interleave", "true", "true"}, Refused{"rope_interleaved", "true", "true"},
        Refused{"rope_local_base_freq", "10000.0", "10000"},
        Refused{"original_max_position_embeddings", "8192", "8192"},
        Refused{"yarn", R"({"factor": 16})", "16"}, Refused{"llama_4_scaling", R"({"beta": 0.1})", "beta"},
        Refused{"llama_4_scaling_beta", "0.1", "0.1"}, Refused{"attn_temperature_tuning", "true", "true"},
        Refused{"no_rope_layers", "[1, 0]", "[1,0]"}, Refused{"no_rope_layer_interval", "4", "4"},
        Refused{"position_embedding_type", "\"alibi\"", "alibi"}, Refused{"alibi", "true", "true"},
        Refused{"attention_chunk_size", "8192", "8192"}, Refused{"attention_sink_size", "4", "4"},
        Refused{"max_window_layers", "28", "28"}, Refused{"causal", "false", "false"},
        Refused{"is_causal", "false", "false"}, Refused{"prefix_lm", "true", "true"}),
    [](const auto& info) { return std::to_string(info.index); });

INSTANTIATE_TEST_SUITE_P(
    HuggingFaceMore, KeyThatChangesTheComputation,
    testing::Values(
        Refused{"pretraining_tp", "2", "2"}, Refused{"attn_logit_softcapping", "50.0", "50"},
        Refused{"final_logit_softcapping", "30.0", "30"}, Refused{"logit_scale", "0.0625", "0.0625"},
        Refused{"logits_scaling", "8.0", "8"}, Refused{"attention_multiplier", "0.1", "0.1"},
        Refused{"embedding_multiplier", "12.0", "12"}, Refused{"residual_multiplier", "0.22", "0.22"},
        Refused{"query_pre_attn_scalar", "256", "256"}, Refused{"scale_embeddings", "true", "true"},
        Refused{"scale_depth", "1.4", "1.4"}, Refused{"scale_emb", "12", "12"},
        Refused{"parallel_attn", "true", "true"}, Refused{"use_parallel_residual", "true", "true"},
        Refused{"parallel_block", "true", "true"}, Refused{"num_kv_shared_layers", "2", "2"},
        Refused{"clip_qkv", "8.0", "8"}, Refused{"logit_cap", "30.0", "30"},
        Refused{"quantization_config", R"({"quant_method": "hqq"})", "hqq"},
        Refused{"quantization", R"({"qformat_weight": "fp8_e4m3"})", "fp8_e4m3"},
        Refused{"compression_config", R"({"format": "pack"})", "pack"},
        Refused{"lora", R"({"rank": 64})", "64"}, Refused{"adapters", R"(["a"])", "a"},
        Refused{"moe", R"({"num_experts": 8})", "8"}, Refused{"num_experts", "8", "8"},
        Refused{"num_local_experts", "8", "8"}, Refused{"n_routed_experts", "128", "128"},
        Refused{"n_shared_experts", "1", "1"}, Refused{"num_experts_per_tok", "2", "2"},
        Refused{"moe_intermediate_size", "2048", "2048"}, Refused{"first_k_dense_replace", "3", "3"},
        Refused{"num_nextn_predict_layers", "1", "1"}, Refused{"q_lora_rank", "1536", "1536"},
        Refused{"kv_lora_rank", "512", "512"}, Refused{"qk_nope_head_dim", "128", "128"},
        Refused{"qk_rope_head_dim", "64", "64"}, Refused{"v_head_dim", "128", "128"},
        Refused{"mamba_d_state", "16", "16"}, Refused{"mamba_d_conv", "4", "4"},
        Refused{"ssm_cfg", R"({"layer": "Mamba2"})", "Mamba2"}, Refused{"state_size", "128", "128"},
        Refused{"attn_layer_indices", "[3]", "[3]"}, Refused{"text_config", R"({"hidden_size": 64})", "64"},
        Refused{"vision_config", R"({"image_size": 1540})", "1540"},
        Refused{"vision_encoder", R"({"dim": 1})", "dim"}, Refused{"audio_config", R"({"dim": 1})", "dim"},
        Refused{"multimodal", R"({"dim": 1})", "dim"}, Refused{"whisper_model_args", R"({"dim": 1})", "dim"},
        Refused{"is_encoder_decoder", "true", "true"}, Refused{"add_cross_attention", "true", "true"},
        Refused{"cross_attention_hidden_size", "64", "64"}, Refused{"pruned_heads", R"({"0": [1]})", "[1]"},
        // Not in any list, refused for what the name says.
        Refused{"made_up_rope_twist", "2", "2"}, Refused{"made_up_norm", "true", "true"},
        Refused{"made_up_clip", "8", "8"}),
    [](const auto& info) { return std::to_string(info.index); });

TEST(ModelConfig, MistralsOwnParamsRefuseTheSameKeys) {
  const std::pair<const char*, const char*> cases[] = {
      {"moe", R"({"num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 1})"},
      {"moe", R"({"num_experts": 8, "num_experts_per_tok": 2, "route_every_n": 2})"},
      {"quantization", R"({"qformat_weight": "nvfp4"})"},
      {"model_type", "\"mamba\""},
      {"use_biases", "true"},
      {"causal", "false"},
      {"activation", "\"gelu\""},
      {"lora", R"({"rank": 64, "scaling": 2.0})"},
      {"q_lora_rank", "1536"}};
  for (const auto& [key, value] : cases) {
    json params = ParamsJson();
    params[key] = json::parse(value);
    const auto parsed = ParseParams(params);
    EXPECT_EQ(parsed.status().code(), StatusCode::kUnimplemented) << key;
    EXPECT_THAT(parsed.status().message(), AllOf(HasSubstr("params.json"), HasSubstr(key)));
  }
}

TEST(ModelConfig, OtherUnknownKeysAreWarningsThatNameThem) {
  json config = MistralJson();
  config["favourite_colour"] = "blue";
  const auto parsed = Parse(config);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(parsed->warnings, ElementsAre(AllOf(HasSubstr("favourite_colour"), HasSubstr("blue"))));
}

// ---- ranges, types, malformed text --------------------------------------------------------------

TEST(ModelConfig, EveryNumberIsCheckedAndNamed) {
  const char* keys[] = {"vocab_size",          "hidden_size", "num_hidden_layers", "num_attention_heads",
                        "num_key_value_heads", "head_dim",    "intermediate_size", "max_position_embeddings"};
  const char* values[] = {
      "0",    "-1", "1.5", "\"64\"", "true", "[64]", "{}", "9223372036854775807", "18446744073709551615",
      "1e300"};
  for (const char* key : keys) {
    for (const char* value : values) {
      json config = MistralJson();
      config[key] = json::parse(value);
      const auto parsed = Parse(config);
      ASSERT_FALSE(parsed.ok()) << key << " = " << value;
      EXPECT_THAT(parsed.status().message(), AllOf(HasSubstr("config.json"), HasSubstr(key)));
    }
  }
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                          "intermediate_size", "max_position_embeddings", "rms_norm_eps"}) {
    json config = MistralJson();
    config.erase(key);
    EXPECT_THAT(Parse(config).status().message(), AllOf(HasSubstr(key), HasSubstr("is missing")));
  }
  for (const char* key : {"rms_norm_eps", "rope_theta"}) {
    for (const char* value : {"0", "-1e-5", "1e30", "\"1e-5\"", "true"}) {
      json config = MistralJson();
      config[key] = json::parse(value);
      EXPECT_THAT(Parse(config).status().message(), HasSubstr(key)) << value;
    }
  }
  for (const char* key :
       {"dim", "n_layers", "n_heads", "n_kv_heads", "hidden_dim", "vocab_size", "max_seq_len", "norm_eps"}) {
    json params = ParamsJson();
    params[key] = -3;
    EXPECT_THAT(ParseParams(params).status().message(),
                AllOf(HasSubstr("params.json"), HasSubstr(key), HasSubstr("-3")));
  }
}

TEST(ModelConfig, HeadsMustBeAMultipleOfKeyValueHeadsAndHeadDimEven) {
  json config = MistralJson();
  config["num_key_value_heads"] = 3;
  EXPECT_THAT(Parse(config).status().message(), AllOf(HasSubstr("8"), HasSubstr("3")));
  config = MistralJson();
  config["head_dim"] = 15;
  EXPECT_THAT(Parse(config).status().message(), AllOf(HasSubstr("head_dim is 15"), HasSubstr("even")));
}

TEST(ModelConfig, MalformedTextIsRefusedWithTheFileNamed) {
  const std::string deep = R"({"a": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  const std::string invalid_utf8 = "{\"vocab_size\xff\": 1}";
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("{\"a\": NaN}"),
        std::string("{\"a\": 1e999}"), std::string("{} {}"), std::string(R"({"a": 1, "a": 2})"), deep,
        invalid_utf8, std::string("{\"a\": \"\0\"}", 10)}) {
    const auto parsed = ParseHuggingFaceConfig(text, "config.json");
    ASSERT_FALSE(parsed.ok());
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(parsed.status().message(), HasSubstr("config.json"));
  }
}

TEST(ModelConfig, DuplicateKeysAreRefusedAtAnyDepth) {
  const auto parsed =
      ParseHuggingFaceConfig(R"({"rope_parameters": {"rope_theta": 1, "rope_theta": 2}})", "config.json");
  EXPECT_THAT(parsed.status().message(), AllOf(HasSubstr("rope_theta"), HasSubstr("twice")));
}

// ---- folders ------------------------------------------------------------------------------------

TEST(ModelFolder, MissingFolderAndMissingConfigsAreNamed) {
  const auto missing = ConfigOf("/nonexistent/model");
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("/nonexistent/model"));
  const TempFolder folder;
  EXPECT_THAT(ConfigOf(folder.path()).status().message(),
              AllOf(HasSubstr("config.json"), HasSubstr("params.json")));
}

TEST(ModelFolder, ConfigsAloneAreEnoughForAConfig) {
  const TempFolder folder;
  folder.Write("config.json", MistralJson().dump());
  folder.Write("generation_config.json", R"({"temperature": 0.5})");
  const auto config = ConfigOf(folder.path() + "/");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FLOAT_EQ(config->defaults.temperature, 0.5f);
}

TEST(ModelFolder, AGenerationConfigGoesWithEitherSet) {
  const TempFolder folder;
  folder.Write("params.json", ParamsJson().dump());
  folder.Write("generation_config.json",
               R"({"temperature": 0.5, "eos_token_id": [7, 9], "bos_token_id": 3})");
  const auto config = ConfigOf(folder.path());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layout, FolderLayout::kMistral);
  EXPECT_FLOAT_EQ(config->defaults.temperature, 0.5f);
  EXPECT_THAT(config->eos_ids, ElementsAre(7, 9));
  EXPECT_EQ(config->eos_source, "generation_config.json");
  EXPECT_EQ(config->bos_id, 3);
  folder.Write("generation_config.json", R"({"eos_token_id": 512})");
  EXPECT_THAT(ConfigOf(folder.path()).status().message(),
              AllOf(HasSubstr("generation_config.json"), HasSubstr("eos_token_id"), HasSubstr("512")));
}

TEST(ModelFolder, TheSetThatHasWeightsIsTaken) {
  const TempFolder folder;
  folder.Write("config.json", MistralJson().dump());
  folder.Write("params.json", ParamsJson().dump());
  EXPECT_EQ(FindModelFiles(folder.path())->layout, FolderLayout::kHuggingFace);
  folder.Write("consolidated.safetensors", "");
  const auto native = FindModelFiles(folder.path());
  EXPECT_EQ(native->layout, FolderLayout::kMistral);
  EXPECT_EQ(native->why, "config.json is there too, but no model*.safetensors");
}

TEST(ModelFolder, TheSingleFileWinsOverShards) {
  const TempFolder folder;
  folder.Write("config.json", MistralJson().dump());
  folder.Write("model-00001-of-00002.safetensors", "");
  folder.Write("model-00002-of-00002.safetensors", "");
  const auto files = FindModelFiles(folder.path());
  EXPECT_THAT(files->weight_files,
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"));
  EXPECT_EQ(files->why, "params.json is not there");
  folder.Write("model.safetensors", "");
  EXPECT_THAT(FindModelFiles(folder.path())->weight_files, ElementsAre("model.safetensors"));
}

// A file that was left there, or of another program, is not the model.
TEST(ModelFolder, WhatTheIndexNamesWinsOverAStrayFile) {
  const struct {
    const char *config, *prefix;
  } layouts[] = {{"config.json", "model"}, {"params.json", "consolidated"}};
  for (const auto& [config, prefix] : layouts) {
    const std::string name = prefix;
    const TempFolder folder;
    folder.Write(config, std::string(config) == "config.json" ? MistralJson().dump() : ParamsJson().dump());
    for (const char* file : {".safetensors", "-a.safetensors", "-b.safetensors", "-c.safetensors"})
      folder.Write(name + file, "");
    const std::string index = name + ".safetensors.index.json";
    folder.Write(index, R"({"weight_map": {"x": ")" + name + R"(-a.safetensors", "y": ")" + name +
                            R"(-b.safetensors"}})");
    const auto files = FindModelFiles(folder.path());
    EXPECT_THAT(files->weight_files, ElementsAre(name + "-a.safetensors", name + "-b.safetensors"));
    EXPECT_EQ(files->index.size(), 2u);
    EXPECT_THAT(LoadModelConfig(*files)->warnings,
                testing::Contains(AllOf(HasSubstr(name + "-c.safetensors and 1 more are left aside"),
                                        HasSubstr("what " + index + " names"))));
    // One that names what is not there, or is none, is of no use beside the single file.
    for (const std::string& useless :
         {R"({"weight_map": {"x": ")" + name + R"(-d.safetensors"}})", std::string("{}"), std::string("[")}) {
      folder.Write(index, useless);
      const auto single = FindModelFiles(folder.path());
      ASSERT_TRUE(single.ok()) << single.status();
      EXPECT_THAT(single->weight_files, ElementsAre(name + ".safetensors")) << useless;
      EXPECT_TRUE(single->index.empty());
      EXPECT_THAT(single->warnings,
                  ElementsAre(AllOf(HasSubstr(index), HasSubstr("the index is left aside")),
                              AllOf(HasSubstr(name + "-a.safetensors and 2 more are left aside"),
                                    HasSubstr("in " + name + ".safetensors"))));
    }
    folder.Write(index, R"({"weight_map": {"x": ")" + name + R"(.safetensors"}})");
    EXPECT_THAT(FindModelFiles(folder.path())->weight_files, ElementsAre(name + ".safetensors"));
  }
}

TEST(ModelFolder, WhatModelOptQuantisedIsRefusedByWhatItIs) {
  const TempFolder folder;
  folder.Write("config.json", MistralJson().dump());
  for (const char* algorithm : {"FP8", "NVFP4"}) {
    folder.Write(
        "hf_quant_config.json",
        json({{"producer", {{"name", "modelopt"}}}, {"quantization", {{"quant_algo", algorithm}}}}).dump());
    EXPECT_THAT(ConfigOf(folder.path()).status().message(),
                AllOf(HasSubstr("hf_quant_config.json"), HasSubstr("quantization.quant_algo"),
                      HasSubstr(algorithm), HasSubstr("ModelOpt")));
  }
  // Of keys and values alone.
  folder.Write("hf_quant_config.json",
               R"({"quantization": {"quant_algo": null, "kv_cache_quant_algo": "FP8"}})");
  EXPECT_THAT(ConfigOf(folder.path())->warnings, ElementsAre(HasSubstr("kv_cache_quant_algo is left out")));
  const TempFolder native;
  native.Write("params.json", ParamsJson().dump());
  native.Write("hf_quant_config.json", R"({"quantization": {"quant_algo": "FP8"}})");
  EXPECT_THAT(ConfigOf(native.path()).status().message(), HasSubstr("ModelOpt"));
  json params = ParamsJson();
  params["quantization"] = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
  EXPECT_THAT(ParseParams(params).status().message(),
              AllOf(HasSubstr("quantization.quant_algo is \"NVFP4\""), HasSubstr("ModelOpt")));
}

// A folder with both sets, as most releases have them.
class FolderWithBothSets : public testing::Test {
 protected:
  FolderWithBothSets() {
    model_.Randomise(1);
    model_.WriteHuggingFace(folder_);
    model_.WriteMistral(folder_);
    folder_.Write("tekken.json", "");
  }
  void ExpectHuggingFace(const std::string& why) {
    const auto files = FindModelFiles(folder_.path());
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ(files->layout, FolderLayout::kHuggingFace);
    EXPECT_EQ(files->config_file, "config.json");
    EXPECT_THAT(files->weight_files, ElementsAre("model.safetensors"));
    EXPECT_THAT(files->why, AllOf(HasSubstr("params.json is there too"), HasSubstr(why)));
  }

  TempFolder folder_;
  TinyModel model_;
};

TEST_F(FolderWithBothSets, MistralsOwnIsTakenIfItIsWhole) {
  const auto files = FindModelFiles(folder_.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->layout, FolderLayout::kMistral);
  EXPECT_EQ(files->config_file, "params.json");
  EXPECT_THAT(files->weight_files, ElementsAre("consolidated.safetensors"));
  EXPECT_THAT(files->why, HasSubstr("config.json is there too"));
}

TEST_F(FolderWithBothSets, AMissingTensorIsNotWhole) {
  model_.tensors.erase("layers.1.attention.wq.weight");
  model_.WriteMistral(folder_);
  ExpectHuggingFace("tensor layers.1.attention.wq.weight is missing");
}

TEST_F(FolderWithBothSets, AMissingShardIsNotWhole) {
  std::filesystem::rename(folder_.PathOf("consolidated.safetensors"),
                          folder_.PathOf("consolidated-00001-of-00002.safetensors"));
  folder_.Write("consolidated.safetensors.index.json",
                R"({"weight_map": {"x": "consolidated-00002-of-00002.safetensors"}})");
  ExpectHuggingFace("consolidated-00002-of-00002.safetensors");
}

TEST_F(FolderWithBothSets, WithoutATokenizerItIsNotWhole) {
  std::filesystem::remove(folder_.PathOf("tekken.json"));
  ExpectHuggingFace("neither tekken.json nor tokenizer.model");
  const auto told = FindModelFiles(folder_.path(), {.tokenizer = "/elsewhere/tekken.json"});
  EXPECT_EQ(told->layout, FolderLayout::kMistral);
  EXPECT_EQ(told->tokenizer, "/elsewhere/tekken.json");
  folder_.Write("tokenizer.model.v3", "");
  EXPECT_EQ(FindModelFiles(folder_.path())->layout, FolderLayout::kMistral);
}

TEST_F(FolderWithBothSets, AConfigThatIsRefusedIsNotWhole) {
  json params = model_.MistralParams();
  params["quantization"] = {{"qformat_weight", "nvfp4"}};
  folder_.Write("params.json", params.dump());
  ExpectHuggingFace("nvfp4");
}

TEST_F(FolderWithBothSets, TheChoiceIsTheUsers) {
  const auto hugging_face =
      FindModelFiles(folder_.path(), {.format = ModelFormat::kHuggingFace, .tokenizer = ""});
  EXPECT_EQ(hugging_face->layout, FolderLayout::kHuggingFace);
  EXPECT_EQ(hugging_face->why, "model_format is hf");
  std::filesystem::remove(folder_.PathOf("consolidated.safetensors"));
  folder_.Write("consolidated.00.pth", "");
  EXPECT_EQ(FindModelFiles(folder_.path())->layout, FolderLayout::kHuggingFace);
  EXPECT_THAT(FindModelFiles(folder_.path())->why, HasSubstr("consolidated.00.pth cannot be read"));
  const auto native = FindModelFiles(folder_.path(), {.format = ModelFormat::kNative, .tokenizer = ""});
  EXPECT_EQ(native->layout, FolderLayout::kMistral);
  EXPECT_THAT(native->unreadable_weights, ElementsAre("consolidated.00.pth"));
  std::filesystem::remove(folder_.PathOf("params.json"));
  EXPECT_THAT(
      FindModelFiles(folder_.path(), {.format = ModelFormat::kNative, .tokenizer = ""}).status().message(),
      AllOf(HasSubstr("model_format is native"), HasSubstr("params.json is not there")));
}

TEST(ModelFolder, IndexNamesTheFiles) {
  const TempFolder folder;
  folder.Write("config.json", MistralJson().dump());
  folder.Write("model-a.safetensors", "");
  folder.Write("model-b.safetensors", "");
  folder.Write("model.safetensors.index.json",
               R"({"metadata": {}, "weight_map": {"x": "model-b.safetensors"}})");
  const auto files = FindModelFiles(folder.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(files->weight_files, ElementsAre("model-b.safetensors"));
  EXPECT_EQ(files->index.at("x"), "model-b.safetensors");
}

TEST(ModelFolder, IndexMustNotLeadOutOfTheFolder) {
  for (const char* map :
       {R"({"x": "../secret.safetensors"})", R"({"x": "/etc/passwd"})", R"({"x": 7})", "{}", "[]", "null"}) {
    const TempFolder folder;
    folder.Write("config.json", MistralJson().dump());
    folder.Write("model-a.safetensors", "");
    folder.Write("model.safetensors.index.json", std::string(R"({"weight_map": )") + map + "}");
    EXPECT_THAT(FindModelFiles(folder.path()).status().message(),
                AllOf(HasSubstr("model.safetensors.index.json"), HasSubstr("weight_map")))
        << map;
  }
}

TEST(ModelFolder, OversizedAndEmptyFilesAreRefused) {
  const TempFolder folder;
  folder.Write("config.json", std::string((1 << 20) + 1, ' '));
  EXPECT_THAT(ConfigOf(folder.path()).status().message(), HasSubstr("1048576"));
  folder.Write("config.json", MistralJson().dump());
  folder.Write("generation_config.json", "");
  EXPECT_THAT(ConfigOf(folder.path()).status().message(), HasSubstr("generation_config.json"));
}

TEST(ModelFolder, ReadsTheEmbeddedModel) {
  const auto config = ConfigOf(TRAMONTANE_SOURCE_DIR "/models/breeze/weights");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->context, 32768);
  EXPECT_THAT(config->window, testing::Each(256));
  EXPECT_THAT(config->warnings, IsEmpty());
  EXPECT_FLOAT_EQ(config->defaults.temperature, 0.7f);
}

}  // namespace
}  // namespace tramontane
