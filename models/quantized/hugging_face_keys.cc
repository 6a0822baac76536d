#include "models/quantized/hugging_face_keys.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numbers>
#include <optional>
#include <vector>

#include "kernels/core/check.h"
#include "models/architecture.h"
#include "models/quantized/same_model.h"

namespace tramontane {
namespace {

using nlohmann::json;

// A float by the fewest digits that are it.
double Shortest(float value) {
  char text[32];
  int digits = 1;
  do {
    std::snprintf(text, sizeof(text), "%.*g", digits, static_cast<double>(value));
  } while (std::strtof(text, nullptr) != value && ++digits <= 9);
  return std::strtod(text, nullptr);
}

// Bands of Llama 3 that these divisors may be of: with the releases' 1 and 4 for any context that is a power
// of two, and by the line through two frequencies of the band between, from which follow all but one factor
// in context, slow and fast; there slow is 1.
std::vector<RopeScaling> BandsOf(const ModelConfig& config) {
  constexpr int32_t kMostLog2 = 24;
  const std::vector<float>& divisors = config.rope_scaling.divisors;
  const double factor = Shortest(*std::max_element(divisors.begin(), divisors.end()));
  RopeScaling bands = {.kind = RopeScaling::Kind::kLlama3, .factor = factor, .fast = 4, .slow = 1};
  std::vector<RopeScaling> candidates;
  for (int32_t log2 = 0; log2 <= kMostLog2; ++log2) {
    bands.original_context = static_cast<double>(int64_t{1} << log2);
    candidates.push_back(bands);
  }
  const auto plain = RotaryFrequencies(config.rope_theta, config.head_dim, {});
  std::vector<std::pair<double, double>> between;  // turns of a position, and the share that stays
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double share = (1.0 / static_cast<double>(divisors[i]) - 1.0 / factor) / (1.0 - 1.0 / factor);
    if (share > 1e-3 && share < 1.0 - 1e-3) between.emplace_back(plain[i] / (2.0 * std::numbers::pi), share);
  }
  if (between.size() < 2) return candidates;
  const auto &first = between.front(), &last = between.back();
  const double slope = (first.second - last.second) / (first.first - last.first);
  const double at_zero = slope * first.first - first.second;  // slow / (fast - slow)
  bands.original_context = std::round(slope / at_zero);
  bands.fast = Shortest(static_cast<float>(1.0 + 1.0 / at_zero));
  if (bands.original_context >= 1.0 && bands.fast > 1.0) candidates.push_back(bands);
  return candidates;
}

class ConfigWriter {
 public:
  ConfigWriter(const ModelConfig& config, DType dtype, const std::string& where)
      : config_(config), dtype_(dtype), where_(where) {}

  StatusOr<json> Run() {
    TM_RETURN_IF_ERROR(ChooseArchitecture());
    WriteDimensions();
    TM_RETURN_IF_ERROR(WriteRope());
    const auto read = ParseHuggingFaceConfig(keys_.dump(), where_ + " as config.json");
    TM_RETURN_IF_ERROR(read.status());
    const std::string differs = WhatDiffers(config_, *read);
    if (!differs.empty()) return Refuse(differs);
    if (read->tied_embeddings != config_.tied_embeddings) return Refuse("that its embedding is tied");
    return keys_;
  }

 private:
  Status Refuse(const std::string& what) const {
    return Unimplemented(where_ + ": " + what + ": the keys of a config.json cannot say it");
  }

  // The class whose layers have these windows.
  Status ChooseArchitecture() {
    const std::vector<int32_t>& windows = config_.window;
    const int32_t window = *std::max_element(windows.begin(), windows.end());
    const bool all_alike = std::count(windows.begin(), windows.end(), windows[0]) == config_.layers;
    const bool is_llama = config_.architecture == "LlamaForCausalLM";
    std::string name = config_.architecture;
    if (is_llama && window != 0) name = all_alike ? "MistralForCausalLM" : "MinistralForCausalLM";
    const Architecture& architecture = FindArchitecture(name);
    keys_["architectures"] = {name};
    keys_["model_type"] = architecture.model_type;
    if (architecture.windowed) keys_["sliding_window"] = window == 0 ? json() : json(window);
    if (all_alike) return {};
    if (!architecture.layer_types) return Refuse("windows on some layers of " + name);
    for (const int32_t of_layer : windows)
      keys_["layer_types"].push_back(of_layer == 0 ? "full_attention" : "sliding_attention");
    return {};
  }

  void WriteDimensions() {
    keys_["vocab_size"] = config_.vocab_size;
    keys_["hidden_size"] = config_.hidden_size;
    keys_["num_hidden_layers"] = config_.layers;
    keys_["num_attention_heads"] = config_.heads;
    keys_["num_key_value_heads"] = config_.kv_heads;
    keys_["head_dim"] = config_.head_dim;
    keys_["intermediate_size"] = config_.intermediate_size;
    keys_["max_position_embeddings"] = config_.context;
    keys_["rms_norm_eps"] = Shortest(config_.rms_epsilon);
    keys_["hidden_act"] = "silu";
    keys_["tie_word_embeddings"] = config_.tied_embeddings;
    keys_["torch_dtype"] = dtype_ == DType::kF32 ? "float32" : dtype_ == DType::kF16 ? "float16" : "bfloat16";
    keys_["bos_token_id"] = config_.bos_id;
    keys_["eos_token_id"] = config_.eos_ids.size() == 1 ? json(config_.eos_ids[0]) : json(config_.eos_ids);
    if (config_.experts == 0) return;
    keys_["num_local_experts"] = config_.experts;
    keys_["num_experts_per_tok"] = config_.experts_per_token;
  }

  Status WriteRope() {
    const double theta = Shortest(static_cast<float>(config_.rope_theta));
    json scaling;
    if (config_.rope_scaling.kind == RopeScaling::Kind::kYarn) scaling = Yarn();
    if (config_.rope_scaling.kind == RopeScaling::Kind::kDivided) {
      TM_ASSIGN_OR_RETURN(scaling, Bands());
    }
    if (config_.query_scaling.beta != 0.0) {
      if (config_.rope_scaling.kind != RopeScaling::Kind::kYarn)
        return Refuse("queries that are scaled without YaRN");
      scaling["llama_4_scaling_beta"] = Shortest(static_cast<float>(config_.query_scaling.beta));
    }
    // Its class has them in one object alone.
    if (FindArchitecture(keys_["architectures"][0].get<std::string>()).query_scaling) {
      if (scaling.is_null()) scaling["rope_type"] = "default";
      scaling["rope_theta"] = theta;
      keys_["rope_parameters"] = scaling;
      return {};
    }
    keys_["rope_theta"] = theta;
    if (!scaling.is_null()) keys_["rope_scaling"] = scaling;
    return {};
  }

  json Yarn() const {
    const RopeScaling& scaling = config_.rope_scaling;
    return {{"rope_type", "yarn"},
            {"factor", Shortest(static_cast<float>(scaling.factor))},
            {"original_max_position_embeddings", static_cast<int64_t>(scaling.original_context)},
            {"beta_fast", Shortest(static_cast<float>(scaling.fast))},
            {"beta_slow", Shortest(static_cast<float>(scaling.slow))},
            {"attention_factor", scaling.magnitude}};
  }

  StatusOr<json> Bands() const {
    for (const RopeScaling& bands : BandsOf(config_)) {
      if (!SameFrequencies(config_, config_.rope_theta, bands)) continue;
      return json{{"rope_type", "llama3"},
                  {"factor", bands.factor},
                  {"original_max_position_embeddings", static_cast<int64_t>(bands.original_context)},
                  {"low_freq_factor", bands.slow},
                  {"high_freq_factor", bands.fast}};
    }
    return Refuse(
        "rotary frequencies divided as in its tensor rope_freqs.weight, which are no bands of Llama 3's");
  }

  const ModelConfig& config_;
  const DType dtype_;
  const std::string& where_;
  json keys_ = json::object();
};

}  // namespace

StatusOr<json> MakeHuggingFaceConfig(const ModelConfig& config, DType dtype, const std::string& where) {
  TM_CHECK(Format(dtype).plain(), "weights that are not quantised are bf16, f16 or f32");
  return ConfigWriter(config, dtype, where).Run();
}

}  // namespace tramontane
