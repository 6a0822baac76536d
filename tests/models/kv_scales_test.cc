// Scales that a checkpoint brings for keys and values in fp8: what they do, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/cpu_variants.h"
#include "tests/support/load_folder.h"
#include "tests/support/model_driver.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Far above 1, so that fp8 with a scale of 1 saturates at once; powers of two, so that only it can differ.
constexpr float kKeyScale = 4096.0f;
constexpr float kValueScale = 1024.0f;

void Multiply(TinyModel& model, const std::string& ending, float by) {
  for (auto& [name, tensor] : model.tensors) {
    if (!name.ends_with(ending)) continue;
    for (float& value : tensor.values) value *= by;
  }
}

// The same function with keys and values that much larger.
TinyModel WithLargeKeysAndValues(TinyModel model) {
  Multiply(model, "attention.wk.weight", kKeyScale);
  Multiply(model, "attention.wq.weight", 1 / kKeyScale);
  Multiply(model, "attention.wv.weight", kValueScale);
  Multiply(model, "attention.wo.weight", 1 / kValueScale);
  return model;
}

TinyModel SomeModel() {
  TinyModel model;
  model.Randomise(7);
  return model;
}

json SchemeOfTheFile() {
  return {{"quant_method", "compressed-tensors"},
          {"format", "dense"},
          {"config_groups", json::object()},
          {"kv_cache_scheme",
           {{"num_bits", 8},
            {"type", "float"},
            {"strategy", "tensor"},
            {"dynamic", false},
            {"symmetric", true}}}};
}

// A folder of the model that brings these scales for each layer.
void WriteWithScales(const TinyModel& model, const json& scheme, const std::vector<int64_t>& shape,
                     float key_scale, const TempFolder& folder) {
  json config = model.HuggingFaceConfig();
  config["quantization_config"] = scheme;
  SafetensorsWriter writer = model.HuggingFaceTensors();
  for (int32_t layer = 0; layer < model.layers; ++layer) {
    const std::string stem = "model.layers." + std::to_string(layer) + ".self_attn.";
    writer.Add(stem + "k_scale", shape, {key_scale});
    writer.Add(stem + "v_scale", shape, {kValueScale});
  }
  folder.Write("config.json", config.dump());
  folder.Write("model.safetensors", writer.File());
}

std::vector<std::vector<float>> LogitsOf(const TempFolder& folder, Backend& backend, DType kv_dtype) {
  LoadOptions options;
  options.kv.dtype = kv_dtype;
  auto model = LoadFolder(folder.path(), backend, options);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return {};
  ModelDriver driver(**model, backend, {});
  const int sequence = driver.AddSequence();
  auto logits = driver.Step({{sequence, {1, 9, 25, 60, 33, 2, 71, 80, 14, 5, 6}}});
  logits.push_back(driver.Step({{sequence, {42}}})[0]);
  return logits;
}

class KvScales : public testing::TestWithParam<std::vector<int64_t>> {};

TEST_P(KvScales, OfTheFileScaleKeysAndValuesInFp8) {
  const TinyModel model = SomeModel();
  const TinyModel large = WithLargeKeysAndValues(model);
  const TempFolder plain, scaled, unscaled;
  model.WriteHuggingFace(plain);
  large.WriteHuggingFace(unscaled);
  WriteWithScales(large, SchemeOfTheFile(), GetParam(), kKeyScale, scaled);
  for (const std::string& variant : TestedCpuVariants()) {
    SCOPED_TRACE(variant);
    const BackendPtr backend = MakeCpuBackend({.threads = 2, .variant = variant}).value();
    const auto expected = LogitsOf(plain, *backend, DType::kFp8E4M3);
    EXPECT_EQ(LogitsOf(scaled, *backend, DType::kFp8E4M3), expected);
    EXPECT_NE(LogitsOf(unscaled, *backend, DType::kFp8E4M3), expected) << "keys that fp8 holds as they are";
    // Of no other type do they say anything.
    EXPECT_EQ(LogitsOf(scaled, *backend, DType::kF32), LogitsOf(plain, *backend, DType::kF32));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, KvScales, testing::Values(std::vector<int64_t>{1}, std::vector<int64_t>{}));

Status ErrorOf(const json& scheme, const std::vector<int64_t>& shape, float key_scale) {
  const TempFolder folder;
  WriteWithScales(SomeModel(), scheme, shape, key_scale, folder);
  const BackendPtr backend = CpuBackendWith(1);
  return LoadFolder(folder.path(), *backend, {}).status();
}

TEST(KvScalesOfAFile, MustBeFiniteAndAboveZero) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::pair<float, const char*> wrong[] = {{0.0f, "k_scale is 0.000000; a scale must be above 0"},
                                                 {-1.0f, "k_scale is -1.000000; a scale must be above 0"},
                                                 {kInfinity, "k_scale holds values that are not finite"}};
  for (const auto& [scale, words] : wrong) {
    EXPECT_THAT(ErrorOf(SchemeOfTheFile(), {1}, scale).message(), HasSubstr(words));
  }
}

TEST(KvScalesOfAFile, AreOneNumberEach) {
  const TempFolder folder;
  json config = SomeModel().HuggingFaceConfig();
  config["quantization_config"] = SchemeOfTheFile();
  folder.Write("config.json", config.dump());
  SafetensorsWriter writer = SomeModel().HuggingFaceTensors();
  folder.Write("model.safetensors", writer.File());
  const BackendPtr backend = CpuBackendWith(1);
  EXPECT_THAT(LoadFolder(folder.path(), *backend, {}).status().message(),
              HasSubstr("tensor model.layers.0.self_attn.k_scale is missing"));
  writer.Add("model.layers.0.self_attn.k_scale", {2}, {1.0f, 1.0f});
  folder.Write("model.safetensors", writer.File());
  EXPECT_THAT(LoadFolder(folder.path(), *backend, {}).status().message(),
              HasSubstr("k_scale has shape [2]; by the config it must be [1]"));
}

TEST(KvScalesOfAFile, OtherSchemesAreRefusedByName) {
  const std::pair<const char*, const char*> refused[] = {
      {R"({"kv_cache_scheme": {"num_bits": 4}})", "kv_cache_scheme.num_bits is 4"},
      {R"({"kv_cache_scheme": {"type": "int"}})", "kv_cache_scheme.type is \"int\""},
      {R"({"kv_cache_scheme": {"strategy": "attn_head"}})", "kv_cache_scheme.strategy is \"attn_head\""},
      {R"({"kv_cache_scheme": {"dynamic": true}})", "kv_cache_scheme.dynamic is true"},
      {R"({"kv_cache_scheme": {"symmetric": false}})", "kv_cache_scheme.symmetric is false"},
      {R"({"kv_cache_scheme": {"twist": 1}})", "kv_cache_scheme.twist is 1"},
      {R"({"kv_cache_scheme": 8})", "kv_cache_scheme is 8; it must be an object"},
      {R"({"kv_cache_scheme": null})", "format is \"dense\""},
      {R"({"config_groups": {"group_0": {"targets": ["Linear"]}}})", "config_groups is"},
  };
  for (const auto& [change, words] : refused) {
    json scheme = SchemeOfTheFile();
    scheme.merge_patch(json::parse(change));
    EXPECT_THAT(ErrorOf(scheme, {1}, 1.0f).message(), HasSubstr(words)) << change;
  }
}

}  // namespace
}  // namespace tramontane
