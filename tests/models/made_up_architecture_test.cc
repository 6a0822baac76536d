// What an architecture costs: one row of the table, and one file with the block that no other has. This file
// is that file, and its test: layers of attention and of two matrices with nothing between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/backends/cpu_backend.h"
#include "models/architecture.h"
#include "models/block.h"
#include "models/op_status.h"
#include "tests/support/load_folder.h"
#include "tests/support/model_driver.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace tramontane {
namespace {

// hidden += Wdown Wup norm(hidden)
void ListWeights(const ModelConfig& config, int32_t layer, WeightList& weights) {
  weights.AddNorm({WeightRole::kMlpNorm, layer},
                  {".post_attention_layernorm.weight", ".ffn_norm.weight", ".ffn_norm.weight"},
                  config.hidden_size);
  weights.AddMatrix(
      {WeightRole::kGateUp, layer},
      {{{".mlp.up_proj.weight", ".feed_forward.w3.weight", ".ffn_up.weight"}, config.intermediate_size}},
      config.hidden_size);
  weights.AddMatrix(
      {WeightRole::kDown, layer},
      {{{".mlp.down_proj.weight", ".feed_forward.w2.weight", ".ffn_down.weight"}, config.hidden_size}},
      config.intermediate_size);
}

class TwoMatricesBlock final : public Block {
 public:
  explicit TwoMatricesBlock(const BlockParts& parts)
      : backend_(parts.backend),
        norm_epsilon_(parts.config.rms_epsilon),
        norm_(parts.weights.vector(WeightRole::kMlpNorm, parts.layer)),
        up_(parts.weights.matrix(WeightRole::kGateUp, parts.layer)),
        down_(parts.weights.matrix(WeightRole::kDown, parts.layer)),
        buffer_(parts.buffers[0]) {}

  OpCode Forward(const BlockStep& step, const Residual& residual) const override {
    const Tensor product = FirstRows(buffer_, step.batch.tokens);
    TM_RETURN_IF_FAILED(backend_.Linear({.x = residual.stream(),
                                         .rows = step.batch.tokens,
                                         .prologue = Prologue::kRmsNorm,
                                         .norm_weight = norm_,
                                         .norm_epsilon = norm_epsilon_,
                                         .weight = up_,
                                         .out = product}));
    return residual.Add(product, down_);
  }

 private:
  Backend& backend_;
  const float norm_epsilon_;
  const float* const norm_;
  const WeightHandle up_;
  const WeightHandle down_;
  const Tensor buffer_;
};

constexpr BlockKind kTwoMatrices = {
    ListWeights, [](const ModelConfig& config) { return std::vector<int64_t>{config.intermediate_size}; },
    [](const BlockParts& parts) -> std::unique_ptr<const Block> {
      return std::make_unique<TwoMatricesBlock>(parts);
    }};

constexpr const BlockKind* kLayer[] = {&kAttentionBlock, &kTwoMatrices};
constexpr Architecture kRow = {.name = "MadeUpForCausalLM",
                               .model_type = "made_up",
                               .windowed = true,
                               .default_window = 0,
                               .default_theta = 10000,
                               .layer_types = false,
                               .query_scaling = false,
                               .experts = false,
                               .blocks = kLayer};

using Vector = std::vector<double>;

Vector Normalised(const Vector& x, const TinyTensor& weight) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * weight.values[i];
  return y;
}

Vector Times(const TinyTensor& matrix, const Vector& x) {
  Vector y(static_cast<size_t>(matrix.shape[0]), 0.0);
  for (size_t row = 0; row < y.size(); ++row) {
    for (size_t k = 0; k < x.size(); ++k) y[row] += double{matrix.values[row * x.size() + k]} * x[k];
  }
  return y;
}

// Logits of one token where attention adds nothing.
Vector Expected(const TinyModel& model, int32_t token) {
  const auto at = [&](const std::string& name) -> const TinyTensor& { return model.tensors.at(name); };
  Vector x(static_cast<size_t>(model.hidden));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = at("tok_embeddings.weight").values[static_cast<size_t>(token) * x.size() + i];
  }
  for (int32_t layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const Vector inner =
        Times(at(prefix + "feed_forward.w3.weight"), Normalised(x, at(prefix + "ffn_norm.weight")));
    const Vector added = Times(at(prefix + "feed_forward.w2.weight"), inner);
    for (size_t i = 0; i < x.size(); ++i) x[i] += added[i];
  }
  return Times(at("output.weight"), Normalised(x, at("norm.weight")));
}

TEST(MadeUpArchitectureTest, IsARowAndAFile) {
  AddArchitecture(kRow);
  TinyModel model;
  model.Randomise(3);
  for (auto& [name, tensor] : model.tensors) {
    if (name.ends_with("attention.wo.weight")) std::fill(tensor.values.begin(), tensor.values.end(), 0.0f);
  }
  const TempFolder folder;
  nlohmann::json config = model.HuggingFaceConfig();
  config["architectures"] = {kRow.name};
  config["model_type"] = kRow.model_type;
  folder.Write("config.json", config.dump());
  folder.Write("model.safetensors", model.HuggingFaceTensors().File());
  const BackendPtr backend = MakeCpuBackend({.threads = 1, .variant = ""}).value();
  EXPECT_THAT(LoadFolder(folder.path(), *backend, {}).status().message(),
              testing::HasSubstr("layers.0.mlp.gate_proj.weight is no part of this architecture"));

  std::erase_if(model.tensors, [](const auto& entry) { return entry.first.ends_with("w1.weight"); });
  folder.Write("model.safetensors", model.HuggingFaceTensors().File());
  auto loaded = LoadFolder(folder.path(), *backend, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ModelDriver driver(**loaded, *backend, {});
  for (const int32_t token : {1, 5, 90}) {
    const std::vector<float> logits = driver.Step({{driver.AddSequence(), {token}}})[0];
    const Vector expected = Expected(model, token);
    ASSERT_EQ(logits.size(), expected.size());
    for (size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], expected[i], 1e-3) << "logit " << i;
  }
}

}  // namespace
}  // namespace tramontane
