#include "models/quantized/gguf_model_keys.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/quantized/same_model.h"

namespace tramontane {
namespace {

using Kind = RopeScaling::Kind;

constexpr char kTokens[] = "tokenizer.ggml.tokens";

// YaRN's factor on cos and sin is (0.1 ln f + 1) / (0.1 m ln f + 1); the format has m. Negative: none fits.
double LogMultiplier(const RopeScaling& scaling) {
  const double whole = YarnMagnitude(scaling.factor, 1.0, 0.0);
  if (whole == 1.0) return scaling.magnitude == 1.0 ? 0.0 : -1.0;
  if (NearlyEqual(scaling.magnitude, whole)) return 0.0;
  const double multiplier = (whole / scaling.magnitude - 1.0) / (whole - 1.0);
  // What is 1 but for the division's rounding.
  return NearlyEqual(multiplier, 1.0) ? 1.0 : multiplier;
}

class Writer {
 public:
  Writer(const ModelConfig& config, const GgufKeys& tokenizer, const std::string& where)
      : config_(config), tokenizer_(tokenizer), where_(where) {}

  StatusOr<GgufModelKeys> Run() {
    TM_RETURN_IF_ERROR(ChooseArchitecture());
    WriteDimensions();
    TM_RETURN_IF_ERROR(WriteWindows());
    TM_RETURN_IF_ERROR(WriteRope());
    result_.keys.Add(tokenizer_);
    TM_RETURN_IF_ERROR(WriteSpecialIds());
    TM_RETURN_IF_ERROR(CheckReadBack());
    return std::move(result_);
  }

 private:
  Status Refuse(const std::string& what) const {
    return Unimplemented(where_ + ": " + what + ": the keys of a GGUF file cannot say it");
  }
  std::string In(const char* key) const { return prefix_ + key; }

  // Of the two only mistral3 has readers for YaRN without its factor and for queries that are scaled.
  Status ChooseArchitecture() {
    const std::string& name = config_.architecture;
    const bool scaled = config_.query_scaling.beta != 0.0 || (config_.rope_scaling.kind == Kind::kYarn &&
                                                              LogMultiplier(config_.rope_scaling) != 0.0);
    const bool mistral3 = name == "Ministral3ForCausalLM" || (scaled && config_.experts == 0);
    const bool known = name == "MistralForCausalLM" || name == "MinistralForCausalLM" || mistral3 ||
                       name == "MixtralForCausalLM" || name == "LlamaForCausalLM";
    if (!known) return Refuse("architecture " + name);
    if (scaled && !mistral3) return Refuse("experts with rotary embeddings or queries that are scaled");
    prefix_ = mistral3 ? "mistral3." : "llama.";
    result_.keys.SetString("general.architecture", mistral3 ? "mistral3" : "llama");
    result_.keys.SetString("general.type", "model");
    return {};
  }

  void WriteDimensions() {
    GgufKeys& keys = result_.keys;
    keys.SetUint32(In("vocab_size"), config_.vocab_size);
    keys.SetUint32(In("context_length"), config_.context);
    keys.SetUint32(In("embedding_length"), config_.hidden_size);
    keys.SetUint32(In("block_count"), config_.layers);
    keys.SetUint32(In("feed_forward_length"), config_.intermediate_size);
    keys.SetUint32(In("attention.head_count"), config_.heads);
    keys.SetUint32(In("attention.head_count_kv"), config_.kv_heads);
    keys.SetUint32(In("attention.key_length"), config_.head_dim);
    keys.SetUint32(In("attention.value_length"), config_.head_dim);
    keys.SetFloat(In("attention.layer_norm_rms_epsilon"), config_.rms_epsilon);
    if (config_.experts == 0) return;
    keys.SetUint32(In("expert_count"), config_.experts);
    keys.SetUint32(In("expert_used_count"), config_.experts_per_token);
  }

  Status WriteWindows() {
    const int32_t window = *std::max_element(config_.window.begin(), config_.window.end());
    std::vector<bool> windowed;
    for (const int32_t of_layer : config_.window) {
      if (of_layer != 0 && of_layer != window) {
        return Refuse("layers with windows of " + std::to_string(of_layer) + " and of " +
                      std::to_string(window));
      }
      windowed.push_back(of_layer != 0);
    }
    if (window == 0) return {};
    result_.keys.SetUint32(In("attention.sliding_window"), window);
    if (std::find(windowed.begin(), windowed.end(), false) != windowed.end())
      result_.keys.SetBools(In("attention.sliding_window_pattern"), windowed);
    return {};
  }

  Status WriteRope() {
    GgufKeys& keys = result_.keys;
    const RopeScaling& scaling = config_.rope_scaling;
    keys.SetUint32(In("rope.dimension_count"), config_.head_dim);
    keys.SetFloat(In("rope.freq_base"), config_.rope_theta);
    if (scaling.kind == Kind::kYarn) TM_RETURN_IF_ERROR(WriteYarn());
    if (scaling.kind == Kind::kLlama3 || scaling.kind == Kind::kDivided) AddDivisors();
    if (config_.query_scaling.beta == 0.0) return {};
    if (scaling.kind == Kind::kYarn && scaling.original_context != config_.query_scaling.positions) {
      return Refuse("queries scaled every " + std::to_string(config_.query_scaling.positions) +
                    " positions, rotary embeddings made for " +
                    std::to_string(static_cast<int64_t>(scaling.original_context)));
    }
    keys.SetFloat(In("attention.temperature_scale"), config_.query_scaling.beta);
    keys.SetUint32(In("rope.scaling.original_context_length"), config_.query_scaling.positions);
    return {};
  }

  Status WriteYarn() {
    GgufKeys& keys = result_.keys;
    const RopeScaling& scaling = config_.rope_scaling;
    const double multiplier = LogMultiplier(scaling);
    if (multiplier < 0.0)
      return Refuse("YaRN with a factor of " + std::to_string(scaling.magnitude) + " on cos and sin");
    keys.SetString(In("rope.scaling.type"), "yarn");
    keys.SetFloat(In("rope.scaling.factor"), scaling.factor);
    keys.SetUint32(In("rope.scaling.original_context_length"),
                   static_cast<int64_t>(scaling.original_context));
    keys.SetFloat(In("rope.scaling.yarn_beta_fast"), scaling.fast);
    keys.SetFloat(In("rope.scaling.yarn_beta_slow"), scaling.slow);
    if (multiplier != 0.0) keys.SetFloat(In("rope.scaling.yarn_log_multiplier"), multiplier);
    RopeScaling whole_pairs = scaling;
    whole_pairs.truncate = true;
    if (!SameFrequencies(config_, config_.rope_theta, whole_pairs))
      return Refuse("YaRN with truncate false, a band that does not end at whole pairs");
    return {};
  }

  void AddDivisors() {
    const auto scaled = RotaryFrequencies(config_.rope_theta, config_.head_dim, config_.rope_scaling);
    const auto plain = RotaryFrequencies(config_.rope_theta, config_.head_dim, {});
    for (size_t i = 0; i < scaled.size(); ++i)
      result_.rotary_divisors.push_back(static_cast<float>(plain[i] / scaled[i]));
  }

  // The format has a key each for the ends of a text, of a turn and of a message to a tool; whichever id
  // stands in which, all of them end an answer.
  Status WriteSpecialIds() {
    GgufKeys& keys = result_.keys;
    constexpr const char* kEnds[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                     "tokenizer.ggml.eom_token_id"};
    if (config_.eos_ids.size() > std::size(kEnds))
      return Refuse(std::to_string(config_.eos_ids.size()) + " ids that end an answer");
    if (!tokenizer_.Has(kTokens) && config_.bos_id < config_.vocab_size)
      keys.SetUint32("tokenizer.ggml.bos_token_id", config_.bos_id);
    std::vector<int32_t> ids = config_.eos_ids;
    // That of the tokenizer is first.
    const auto own = tokenizer_.Metadata(where_).IntOr(kEnds[0], 0, config_.vocab_size - 1, -1);
    if (own.ok()) std::stable_partition(ids.begin(), ids.end(), [&](int32_t id) { return id == *own; });
    for (size_t i = 0; i < ids.size(); ++i) keys.SetUint32(kEnds[i], ids[i]);
    return {};
  }

  // Whatever the lines above forget: the keys, read as those of any file, are this config.
  Status CheckReadBack() const {
    const GgufMetadata metadata = result_.keys.Metadata(where_ + " as GGUF");
    TM_ASSIGN_OR_RETURN(ModelConfig read, ReadGgufConfig(metadata));
    if (!result_.rotary_divisors.empty()) {
      read.rope_scaling.kind = Kind::kDivided;
      read.rope_scaling.divisors = result_.rotary_divisors;
    }
    if (read.vocab_size != config_.vocab_size) {
      return InvalidArgument(where_ + ": the tokenizer has " + std::to_string(read.vocab_size) +
                             " tokens, the embedding has rows for " + std::to_string(config_.vocab_size));
    }
    const std::string differs = WhatDiffers(config_, read);
    if (!differs.empty()) return Refuse(differs);
    return {};
  }

  const ModelConfig& config_;
  const GgufKeys& tokenizer_;
  const std::string& where_;
  std::string prefix_;  // "llama."
  GgufModelKeys result_;
};

}  // namespace

StatusOr<GgufModelKeys> MakeGgufModelKeys(const ModelConfig& config, const GgufKeys& tokenizer,
                                          const std::string& where) {
  return Writer(config, tokenizer, where).Run();
}

}  // namespace tramontane
