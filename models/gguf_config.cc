// The keys of a GGUF file as a model's config.
//
// Source of their meaning: the GGUF specification, and what llama.cpp's models `llama` and `mistral3`
// compute.
#include <algorithm>
#include <cmath>

#include "models/config_reader.h"
#include "models/gguf_key_reader.h"

namespace tramontane {
namespace {

constexpr char kArchitectureKey[] = "general.architecture";
constexpr char kTokens[] = "tokenizer.ggml.tokens";
constexpr double kMostFactor = 1e6;
constexpr double kMostTurns = 1e6;

StatusOr<std::string> ReadGgufArchitecture(const GgufMetadata& metadata) {
  TM_ASSIGN_OR_RETURN(const std::string_view type, metadata.StringOr("general.type", "model"));
  if (type != "model") {
    return Unimplemented(metadata.file() + ": key \"general.type\" is \"" + Excerpt(type) +
                         "\"; only a \"model\" can be served");
  }
  TM_ASSIGN_OR_RETURN(const std::string_view name, metadata.String(kArchitectureKey));
  if (name != "llama" && name != "mistral3") {
    return Unimplemented(metadata.file() + ": key \"" + kArchitectureKey + "\" is \"" + Excerpt(name) +
                         "\": this architecture is not implemented; \"llama\" and \"mistral3\" are");
  }
  return std::string(name);
}

// The tokens are what the embedding has rows for; a file without a tokenizer says their number, or its
// embedding does.
int32_t ReadVocabularySize(GgufKeyReader& in, int64_t embedding_rows) {
  const GgufMetadata& metadata = in.metadata();
  const auto tokens = metadata.values().find(kTokens);
  const bool listed = tokens != metadata.values().end();
  const int64_t said = in.IntOr("vocab_size", 1, kMaxVocab, 0);
  if (listed) {
    const GgufValue& value = tokens->second;
    if (value.kind != GgufKind::kArray || value.element != GgufKind::kString) {
      in.Fail(InvalidArgument(metadata.file() + ": key \"" + kTokens + "\" is " + GgufMetadata::Text(value) +
                              "; it must be an array of strings"));
    } else if (value.count < 1) {
      in.Fail(InvalidArgument(metadata.file() + ": key \"" + kTokens + "\" has no tokens"));
    }
    return static_cast<int32_t>(std::max<int64_t>(1, value.count));
  }
  if (said > 0) return static_cast<int32_t>(said);
  if (embedding_rows > 0 && embedding_rows <= kMaxVocab) return static_cast<int32_t>(embedding_rows);
  in.Fail(NotFound(metadata.file() + ": key \"" + in.PathOf("vocab_size") +
                   "\" is missing, and there is no tokenizer in it (\"" + kTokens + "\") to count"));
  return 1;
}

int32_t ReadGgufHeadDim(GgufKeyReader& in, const ModelConfig& config) {
  int64_t head_dim = config.hidden_size / config.heads;
  if (in.Has("attention.key_length")) {
    head_dim = in.Int("attention.key_length", 2, kMaxHeadDim);
  } else if (config.hidden_size % config.heads != 0 || head_dim < 2 || head_dim > kMaxHeadDim) {
    in.Wrong("attention.key_length", "given, since embedding_length " + std::to_string(config.hidden_size) +
                                         " by head_count " + std::to_string(config.heads) +
                                         " is no size of a head");
  }
  for (const char* same : {"attention.value_length", "rope.dimension_count"}) {
    if (in.IntOr(same, 0, kMaxHidden, head_dim) == head_dim) continue;
    in.Refuse(same, "heads have " + std::to_string(head_dim) + " dimensions, and this must be the same");
  }
  return static_cast<int32_t>(std::max<int64_t>(2, head_dim));
}

void ReadGgufExperts(GgufKeyReader& in, ModelConfig& config) {
  const int64_t experts = in.IntOr("expert_count", 0, kMaxExperts, 0);
  if (experts == 0) {
    in.IntOr("expert_used_count", 0, 0, 0);
    return;
  }
  config.architecture = "MixtralForCausalLM";
  config.experts = static_cast<int32_t>(experts);
  config.experts_per_token = static_cast<int32_t>(in.Int("expert_used_count", 1, experts));
}

// [layers]. The window is all layers' where no pattern says which (true: windowed).
std::vector<int32_t> ReadGgufWindows(GgufKeyReader& in, int32_t layers) {
  constexpr char kWindow[] = "attention.sliding_window", kPattern[] = "attention.sliding_window_pattern";
  const auto window = static_cast<int32_t>(in.IntOr(kWindow, 0, kMaxPositions, 0));
  std::vector<int32_t> windows(static_cast<size_t>(layers), window);
  if (!in.Has(kPattern)) return windows;
  const std::vector<bool> pattern = in.Bools(kPattern);
  if (static_cast<int64_t>(pattern.size()) != layers) {
    in.Wrong(kPattern, "an array of block_count = " + std::to_string(layers) + " bools");
    return windows;
  }
  for (size_t layer = 0; layer < windows.size(); ++layer) {
    if (!pattern[layer]) windows[layer] = 0;
    if (pattern[layer] && window == 0) in.Wrong(kWindow, "set, since its pattern says which layers have it");
  }
  return windows;
}

void ReadGgufYarn(GgufKeyReader& in, ModelConfig& config) {
  RopeScaling& scaling = config.rope_scaling;
  scaling.kind = RopeScaling::Kind::kYarn;
  scaling.factor = in.Number("rope.scaling.factor", 1.0, kMostFactor);
  scaling.fast = in.NumberOr("rope.scaling.yarn_beta_fast", 0.0, kMostTurns, 32.0);
  scaling.slow = in.NumberOr("rope.scaling.yarn_beta_slow", 0.0, kMostTurns, 1.0);
  if (scaling.fast < scaling.slow || scaling.slow <= 0.0) {
    in.Wrong("rope.scaling.yarn_beta_fast", "at least yarn_beta_slow, and that above 0");
  }
  const double log_multiplier = in.NumberOr("rope.scaling.yarn_log_multiplier", 0.0, kMostFactor, 0.0);
  scaling.magnitude = YarnMagnitude(scaling.factor, 1.0, log_multiplier);
  if (config.rope_theta <= 1.0) in.Wrong("rope.freq_base", "above 1 with YaRN");
}

void ReadGgufRope(GgufKeyReader& in, ModelConfig& config) {
  constexpr double kDefaultTheta = 10000.0;
  config.rope_theta = in.NumberOr("rope.freq_base", kMinTheta, kMaxTheta, kDefaultTheta);
  if (!in.Has("rope.freq_base")) {
    config.warnings.push_back(in.metadata().file() + ": key \"" + in.PathOf("rope.freq_base") +
                              "\" is missing; 10000 is taken, the format's default");
  }
  config.rope_scaling.original_context =
      static_cast<double>(in.IntOr("rope.scaling.original_context_length", 1, kMaxPositions, config.context));
  const std::string type = in.StringOr("rope.scaling.type", "none");
  if (type == "yarn") {
    ReadGgufYarn(in, config);
    return;
  }
  // Without a type the format means linear.
  const double factor = in.NumberOr("rope.scaling.factor", 0.0, kMostFactor, 1.0);
  const bool unscaled = type == "none" || (type == "linear" && (factor == 0.0 || factor == 1.0));
  if (!unscaled) in.Refuse("rope.scaling.type", "only \"none\" and \"yarn\" rope scaling are implemented");
  if (!in.Has("rope.scaling.type") && factor != 0.0 && factor != 1.0) {
    in.Refuse("rope.scaling.factor", "linear rope scaling is not implemented");
  }
}

// Of Mistral's newer models.
void ReadTemperature(GgufKeyReader& in, ModelConfig& config) {
  config.query_scaling.beta = in.NumberOr("attention.temperature_scale", 0.0, 100.0, 0.0);
  if (config.query_scaling.beta != 0.0) {
    config.query_scaling.positions = static_cast<int32_t>(config.rope_scaling.original_context);
  }
}

// What ends an answer: a text, a turn of a chat, a message to a tool.
void ReadGgufSpecialIds(GgufKeyReader& in, ModelConfig& config) {
  const int64_t last = config.vocab_size - 1;
  config.bos_id = static_cast<int32_t>(
      in.OtherIntOr("tokenizer.ggml.bos_token_id", 0, last, std::min<int64_t>(config.bos_id, last)));
  constexpr int64_t kNone = -1;
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    const auto id = static_cast<int32_t>(in.OtherIntOr(key, 0, last, kNone));
    const bool is_new = std::find(config.eos_ids.begin(), config.eos_ids.end(), id) == config.eos_ids.end();
    if (id != kNone && is_new) config.eos_ids.push_back(id);
  }
  const std::string& file = in.metadata().file();
  if (!config.eos_ids.empty()) {
    config.eos_source = file.substr(file.rfind('/') + 1);
  } else if (config.vocab_size > 2) {
    config.eos_ids = {2};
  }
}

}  // namespace

StatusOr<ModelConfig> ReadGgufConfig(const GgufMetadata& metadata, int64_t embedding_rows) {
  TM_ASSIGN_OR_RETURN(const std::string architecture, ReadGgufArchitecture(metadata));
  GgufKeyReader in(metadata, architecture);
  ModelConfig config;
  config.architecture = architecture == "llama" ? "LlamaForCausalLM" : "Ministral3ForCausalLM";
  config.layout = FolderLayout::kGguf;
  // Rows of queries and keys were put into this order when the file was made.
  config.rotary_style = RotaryStyle::kInterleaved;
  config.tied_if_no_head = true;
  ReadGgufExperts(in, config);
  config.vocab_size = ReadVocabularySize(in, embedding_rows);
  config.hidden_size = static_cast<int32_t>(in.Int("embedding_length", 1, kMaxHidden));
  config.layers = static_cast<int32_t>(in.Int("block_count", 1, kMaxLayers));
  const auto of_layers = [&](const char* key, int64_t most) {
    return static_cast<int32_t>(in.IntOfLayers(key, 1, most, config.layers));
  };
  config.heads = of_layers("attention.head_count", kMaxHeads);
  config.kv_heads =
      in.Has("attention.head_count_kv") ? of_layers("attention.head_count_kv", kMaxHeads) : config.heads;
  config.head_dim = ReadGgufHeadDim(in, config);
  config.intermediate_size = of_layers("feed_forward_length", kMaxIntermediate);
  if (in.IntOr("expert_feed_forward_length", 0, kMaxIntermediate, config.intermediate_size) !=
      config.intermediate_size) {
    in.Refuse("expert_feed_forward_length", "it must be feed_forward_length");
  }
  if (config.heads % config.kv_heads != 0) {
    in.Wrong("attention.head_count_kv", "a divisor of head_count, " + std::to_string(config.heads));
  }
  config.rms_epsilon = static_cast<float>(in.Number("attention.layer_norm_rms_epsilon", 1e-20, 0.1));
  config.context = in.Int("context_length", 1, kMaxPositions);
  ReadGgufRope(in, config);
  if (architecture == "mistral3") ReadTemperature(in, config);
  config.window = ReadGgufWindows(in, config.layers);
  ReadGgufSpecialIds(in, config);
  CheckOtherGgufKeys(in, config.warnings);
  TM_RETURN_IF_ERROR(in.status());
  const nlohmann::json nothing = nlohmann::json::object();
  KeyReader derived(nothing, metadata.file());
  TM_RETURN_IF_ERROR(CheckDerived(derived, config));
  return config;
}

}  // namespace tramontane
