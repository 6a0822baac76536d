#include "tests/support/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

namespace tramontane {
namespace {

using nlohmann::json;

// Mistral's own name -> Hugging Face's, for what follows "layers.N.".
const std::map<std::string, std::string> kLayerNames = {
    {"attention_norm.weight", "input_layernorm.weight"},
    {"attention.wq.weight", "self_attn.q_proj.weight"},
    {"attention.wk.weight", "self_attn.k_proj.weight"},
    {"attention.wv.weight", "self_attn.v_proj.weight"},
    {"attention.wo.weight", "self_attn.o_proj.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"feed_forward.w1.weight", "mlp.gate_proj.weight"},
    {"feed_forward.w2.weight", "mlp.down_proj.weight"},
    {"feed_forward.w3.weight", "mlp.up_proj.weight"},
    {"feed_forward.gate.weight", "block_sparse_moe.gate.weight"},
};

// Of what follows "layers.N.".
std::string HuggingFaceLayerName(const std::string& name) {
  constexpr std::string_view kExperts = "feed_forward.experts.";
  if (name.starts_with(kExperts)) return "block_sparse_moe.experts." + name.substr(kExperts.size());
  return kLayerNames.at(name);
}

std::string HuggingFaceName(const std::string& name) {
  if (name == "tok_embeddings.weight") return "model.embed_tokens.weight";
  if (name == "norm.weight") return "model.norm.weight";
  if (name == "output.weight") return "lm_head.weight";
  const size_t after_number = name.find('.', std::string("layers.").size()) + 1;
  return "model." + name.substr(0, after_number) + HuggingFaceLayerName(name.substr(after_number));
}

// Row 2i of a head becomes row i, row 2i + 1 becomes row head_dim / 2 + i.
TinyTensor HalfSplit(const TinyTensor& tensor, int32_t head_dim) {
  TinyTensor split = tensor;
  const int64_t columns = tensor.shape[1];
  for (int64_t row = 0; row < tensor.shape[0]; ++row) {
    const int64_t head = row / head_dim, r = row % head_dim;
    const int64_t to = head * head_dim + r / 2 + (r % 2) * (head_dim / 2);
    std::copy_n(tensor.values.begin() + row * columns, columns, split.values.begin() + to * columns);
  }
  return split;
}

}  // namespace

void TinyModel::Randomise(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, float mean, float deviation) {
    TinyTensor& tensor = tensors[name];
    tensor.shape = std::move(shape);
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    tensor.values.resize(static_cast<size_t>(count));
    for (float& value : tensor.values) value = mean + deviation * normal(random);
  };
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t columns, float gain) {
    add(name, {rows, columns}, 0.0f, gain / std::sqrt(static_cast<float>(columns)));
  };
  tensors.clear();
  add("tok_embeddings.weight", {vocab, hidden}, 0.0f, tied ? 0.5f : 1.0f);
  for (int32_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    add(prefix + "attention_norm.weight", {hidden}, 1.0f, 0.2f);
    add(prefix + "ffn_norm.weight", {hidden}, 1.0f, 0.2f);
    matrix(prefix + "attention.wq.weight", int64_t{heads} * head_dim, hidden, 1.5f);
    matrix(prefix + "attention.wk.weight", int64_t{kv_heads} * head_dim, hidden, 1.5f);
    matrix(prefix + "attention.wv.weight", int64_t{kv_heads} * head_dim, hidden, 1.0f);
    matrix(prefix + "attention.wo.weight", hidden, int64_t{heads} * head_dim, 1.0f);
    std::vector<std::string> feed_forwards = {prefix + "feed_forward."};
    if (experts > 0) {
      feed_forwards.clear();
      matrix(prefix + "feed_forward.gate.weight", experts, hidden, 1.5f);
    }
    for (int32_t expert = 0; expert < experts; ++expert) {
      feed_forwards.push_back(prefix + "feed_forward.experts." + std::to_string(expert) + ".");
    }
    for (const std::string& feed_forward : feed_forwards) {
      matrix(feed_forward + "w1.weight", intermediate, hidden, 1.0f);
      matrix(feed_forward + "w2.weight", hidden, intermediate, 1.0f);
      matrix(feed_forward + "w3.weight", intermediate, hidden, 1.0f);
    }
  }
  add("norm.weight", {hidden}, 1.0f, 0.2f);
  if (!tied) matrix("output.weight", vocab, hidden, 4.0f);
}

json TinyModel::MistralParams() const {
  json params = {{"dim", hidden},
                 {"n_layers", layers},
                 {"head_dim", head_dim},
                 {"hidden_dim", intermediate},
                 {"n_heads", heads},
                 {"n_kv_heads", kv_heads},
                 {"norm_eps", 1e-5},
                 {"vocab_size", vocab},
                 {"rope_theta", rope_theta},
                 {"max_seq_len", context},
                 {"tied_embeddings", tied}};
  if (experts > 0) params["moe"] = {{"num_experts", experts}, {"num_experts_per_tok", experts_per_token}};
  for (const int32_t w : window) params["sliding_window"].push_back(w == 0 ? json() : json(w));
  return params;
}

json TinyModel::HuggingFaceConfig() const {
  json config = {{"architectures", {"MistralForCausalLM"}},
                 {"model_type", "mistral"},
                 {"hidden_size", hidden},
                 {"num_hidden_layers", layers},
                 {"head_dim", head_dim},
                 {"intermediate_size", intermediate},
                 {"num_attention_heads", heads},
                 {"num_key_value_heads", kv_heads},
                 {"rms_norm_eps", 1e-5},
                 {"vocab_size", vocab},
                 {"rope_theta", rope_theta},
                 {"max_position_embeddings", context},
                 {"sliding_window", nullptr},
                 {"tie_word_embeddings", tied}};
  if (std::set<int32_t>(window.begin(), window.end()).size() > 1) {
    config["architectures"] = {"MinistralForCausalLM"};  // whose class alone reads layer_types
    config["model_type"] = "ministral";
  }
  if (experts > 0) {  // whose class has one window for all layers
    config["architectures"] = {"MixtralForCausalLM"};
    config["model_type"] = "mixtral";
    config["num_local_experts"] = experts;
    config["num_experts_per_tok"] = experts_per_token;
  }
  for (const int32_t w : window) {
    config["layer_types"].push_back(w == 0 ? "full_attention" : "sliding_attention");
    if (w != 0) config["sliding_window"] = w;
  }
  return config;
}

SafetensorsWriter TinyModel::MistralTensors() const {
  SafetensorsWriter writer;
  for (const auto& [name, tensor] : tensors) writer.Add(name, tensor.shape, tensor.values, tensor.dtype);
  return writer;
}

SafetensorsWriter TinyModel::HuggingFaceTensors() const {
  SafetensorsWriter writer;
  for (const auto& [name, tensor] : tensors) {
    const bool rotated = name.ends_with(".wq.weight") || name.ends_with(".wk.weight");
    const TinyTensor converted = rotated ? HalfSplit(tensor, head_dim) : tensor;
    writer.Add(HuggingFaceName(name), converted.shape, converted.values, converted.dtype);
  }
  return writer;
}

void TinyModel::WriteMistral(const TempFolder& folder) const {
  folder.Write("params.json", MistralParams().dump());
  folder.Write("consolidated.safetensors", MistralTensors().File());
}

void TinyModel::WriteHuggingFace(const TempFolder& folder) const {
  folder.Write("config.json", HuggingFaceConfig().dump());
  folder.Write("model.safetensors", HuggingFaceTensors().File());
}

}  // namespace tramontane
