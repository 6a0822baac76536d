#include "models/model_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "models/files/built_in_files.h"
#include "models/json_file.h"
#include "models/kv_layout.h"
#include "models/model_folder.h"

namespace tramontane {
namespace {

using nlohmann::json;

// Beyond these a number is a mistake, and products of any three stay far from overflow.
constexpr int64_t kMaxVocab = 1 << 22;
constexpr int64_t kMaxHidden = 1 << 18;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxIntermediate = 1 << 20;
constexpr int64_t kMaxContext = 1 << 28;

// The one list of what can be run. All of them are the same decoder; only the window's meaning differs.
struct Architecture {
  const char* name;        // in config.json's `architectures`
  const char* model_type;  // in config.json
  bool windowed;           // whether sliding_window means anything
};
constexpr Architecture kArchitectures[] = {
    {"MistralForCausalLM", "mistral", true},
    {"MinistralForCausalLM", "ministral", true},
    {"LlamaForCausalLM", "llama", false},
};

// Keys that change the computation, each with the values (besides null) at which it does not. Any other value
// is refused: passed over, it would give fluent garbage.
struct NeutralKey {
  const char* key;
  const char* neutral;  // JSON list
};
constexpr NeutralKey kNeutralKeys[] = {
    // biases, norms and activation
    {"attention_bias", "[false]"},
    {"mlp_bias", "[false]"},
    {"use_bias", "[false]"},
    {"use_biases", "[false]"},
    {"bias", "[false]"},
    {"qkv_bias", "[false]"},
    {"lm_head_bias", "[false]"},
    {"hidden_act", R"(["silu", "swish"])"},
    {"hidden_activation", R"(["silu", "swish"])"},
    {"activation", R"(["silu", "swish"])"},
    {"activation_function", R"(["silu", "swish"])"},
    {"use_qk_norm", "[false]"},
    {"qk_norm", "[false]"},
    {"qk_layernorm", "[false]"},
    {"norm_type", R"(["rms_norm", "rmsnorm"])"},
    {"ada_rms_norm_t_cond", "[false]"},
    // positions and masks
    {"partial_rotary_factor", "[1]"},
    {"rotary_pct", "[1]"},
    {"rotary_dim", "[]"},
    {"rope_interleave", "[false]"},
    {"rope_interleaved", "[false]"},
    {"rope_local_base_freq", "[]"},
    {"original_max_position_embeddings", "[]"},
    {"yarn", "[]"},
    {"llama_4_scaling", "[]"},
    {"llama_4_scaling_beta", "[0]"},
    {"attn_temperature_tuning", "[false, 0]"},
    {"no_rope_layers", "[[]]"},
    {"no_rope_layer_interval", "[0]"},
    {"position_embedding_type",
     R"(["rope", "rotary", "absolute"])"},  // "absolute": never read by these classes
    {"alibi", "[false]"},
    {"attention_chunk_size", "[]"},
    {"attention_sink_size", "[0]"},
    {"max_window_layers", "[]"},
    {"causal", "[true]"},
    {"is_causal", "[true]"},
    {"prefix_lm", "[false]"},
    // scales and caps
    {"pretraining_tp", "[1]"},
    {"attn_logit_softcapping", "[]"},
    {"final_logit_softcapping", "[]"},
    {"logit_scale", "[1]"},
    {"logits_scaling", "[1]"},
    {"attention_multiplier", "[]"},
    {"embedding_multiplier", "[1]"},
    {"residual_multiplier", "[1]"},
    {"query_pre_attn_scalar", "[]"},
    {"scale_embeddings", "[false]"},
    {"scale_depth", "[]"},
    {"scale_emb", "[1]"},
    {"parallel_attn", "[false]"},
    {"use_parallel_residual", "[false]"},
    // quantisation and adapters
    {"quantization_config", "[]"},
    {"quantization", "[]"},
    {"compression_config", "[]"},
    {"lora", "[]"},
    {"adapters", "[]"},
    // mixtures of experts
    {"moe", "[]"},
    {"num_experts", "[0]"},
    {"num_local_experts", "[0]"},
    {"n_routed_experts", "[0]"},
    {"n_shared_experts", "[0]"},
    {"num_experts_per_tok", "[0]"},
    {"moe_intermediate_size", "[0]"},
    {"first_k_dense_replace", "[]"},
    {"num_nextn_predict_layers", "[0]"},
    // latent attention and state-space layers
    {"q_lora_rank", "[]"},
    {"kv_lora_rank", "[]"},
    {"qk_nope_head_dim", "[]"},
    {"qk_rope_head_dim", "[]"},
    {"v_head_dim", "[]"},
    {"mamba_d_state", "[]"},
    {"mamba_d_conv", "[]"},
    {"ssm_cfg", "[]"},
    {"state_size", "[]"},
    {"attn_layer_indices", "[]"},
    // wrappers around more than a text decoder
    {"text_config", "[]"},
    {"vision_config", "[]"},
    {"vision_encoder", "[]"},
    {"audio_config", "[]"},
    {"multimodal", "[]"},
    {"whisper_model_args", "[]"},
    {"is_encoder_decoder", "[false]"},
    {"add_cross_attention", "[false]"},
    {"cross_attention_hidden_size", "[]"},
    {"pruned_heads", "[{}]"},
};

// An unknown key with one of these in its name is taken for one that changes the computation, unless its
// value is null, false, 0 or empty.
constexpr const char* kSuspectStems[] = {
    "rope",   "rotary", "scal",       "bias",     "norm",      "quant",      "moe",
    "expert", "router", "mamba",      "ssm",      "lora",      "mla",        "softcap",
    "sink",   "alibi",  "multiplier", "adapter",  "vision",    "audio",      "image",
    "window", "attn_",  "attention",  "residual", "embedding", "activation", "layer_types",
};

// Keys without effect on inference. Silent.
constexpr const char* kHarmlessKeys[] = {
    "_name_or_path",
    "architectures",
    "model_type",
    "transformers_version",
    "auto_map",
    "torchscript",
    "task_specific_params",
    "finetuning_task",
    "tokenizer_class",
    "prefix",
    "problem_type",
    "id2label",
    "label2id",
    "num_labels",
    "use_cache",
    "initializer_range",
    "attention_dropout",
    "hidden_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "dropout",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "chunk_size_feed_forward",
    "is_decoder",
    "use_bfloat16",
    "tf_legacy_loss",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "attn_implementation",
    "_flash_attn_2_enabled",
    "use_flash_attention",
    "use_flash_attention_2",
    "use_flash_attn",
    "gradient_checkpointing",
    "unsloth_version",
    "unsloth_fixed",
    "model_name",
    "pad_token_id",
    "unk_token_id",
    "sep_token_id",
    "cls_token_id",
    "decoder_start_token_id",
    // defaults of sampling that old releases wrote into config.json
    "max_length",
    "min_length",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "num_return_sequences",
    "output_scores",
    "return_dict_in_generate",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
    // Mistral's own
    "max_batch_size",
    "model_parallel",
    "vocab_parallel",
    "pipeline_parallel_size",
};

// Reads one JSON object key by key and remembers the first thing that was wrong, so that a list of reads is
// checked once at its end. After an error every read still gives a value in range.
class KeyReader {
 public:
  KeyReader(const json& object, std::string file) : object_(object), file_(std::move(file)) {}

  const Status& status() const { return status_; }
  const std::string& file() const { return file_; }

  // The value, or null where the key is absent.
  const json& Get(const std::string& key) {
    static const json kNull;
    seen_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() ? kNull : *found;
  }
  bool Has(const std::string& key) { return !Get(key).is_null(); }
  bool Contains(const std::string& key) const { return object_.contains(key); }

  int64_t Int(const std::string& key, int64_t least, int64_t most) {
    return IntOf(key, Get(key), least, most);
  }
  int64_t IntOr(const std::string& key, int64_t least, int64_t most, int64_t fallback) {
    return Has(key) ? Int(key, least, most) : fallback;
  }
  int64_t IntOf(const std::string& key, const json& value, int64_t least, int64_t most) {
    if (value.is_number_integer()) {
      // Unsigned values beyond int64 compare as unsigned.
      const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX};
      if (fits && value.get<int64_t>() >= least && value.get<int64_t>() <= most) return value.get<int64_t>();
    }
    Wrong(key, value, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    return least;
  }

  // In (above, most], or [above, most] when `inclusive`.
  double Number(const std::string& key, double above, double most, bool inclusive = false) {
    const json& value = Get(key);
    if (value.is_number()) {
      const double number = value.get<double>();
      if ((inclusive ? number >= above : number > above) && number <= most) return number;
    }
    Wrong(key, value,
          std::string("a number ") + (inclusive ? "from " : "above ") + JsonText(above) + " to " +
              JsonText(most));
    return most;
  }
  bool BoolOr(const std::string& key, bool fallback) {
    const json& value = Get(key);
    if (value.is_null()) return fallback;
    if (!value.is_boolean()) Wrong(key, value, "true or false");
    return value.is_boolean() ? value.get<bool>() : fallback;
  }

  void Wrong(const std::string& key, const json& value, const std::string& wanted) {
    Fail(InvalidArgument(key + (value.is_null() ? " is missing" : " is " + JsonText(value)) +
                         "; it must be " + wanted));
  }
  void Refuse(const std::string& key, const json& value, const std::string& why) {
    Fail(Unimplemented(key + " is " + JsonText(value) + ": " + why));
  }
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status).WithField(file_);
  }

  // Keys nobody has asked for.
  std::vector<std::string> Unread() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object_.items()) {
      if (seen_.count(key) == 0) keys.push_back(key);
    }
    return keys;
  }

 private:
  const json& object_;
  std::string file_;
  std::set<std::string> seen_;
  Status status_;
};

bool ChangesNothing(const json& value) {
  return value.is_null() || value == false || value == 0 || value == "" ||
         ((value.is_array() || value.is_object()) && value.empty());
}

// Refuses what would change the computation, warns of what is not known. Call after every known key was read.
void CheckOtherKeys(KeyReader& in, std::vector<std::string>& warnings) {
  for (const NeutralKey& rule : kNeutralKeys) {
    const json& value = in.Get(rule.key);
    const json neutral = json::parse(rule.neutral);
    if (!value.is_null() && std::find(neutral.begin(), neutral.end(), value) == neutral.end()) {
      in.Refuse(rule.key, value, "it changes the computation and is not implemented");
    }
  }
  for (const char* key : kHarmlessKeys) in.Get(key);
  for (const std::string& key : in.Unread()) {
    const json& value = in.Get(key);
    const bool suspect = std::any_of(std::begin(kSuspectStems), std::end(kSuspectStems),
                                     [&](const char* stem) { return key.find(stem) != std::string::npos; });
    if (suspect && !ChangesNothing(value)) {
      in.Refuse(key, value, "this key is not known and by its name may change the computation");
    } else {
      warnings.push_back(in.file() + ": unknown key " + JsonText(key) + " is ignored (" + JsonText(value) +
                         ")");
    }
  }
}

const Architecture* FindArchitecture(KeyReader& in, std::vector<std::string>& warnings) {
  std::string names;
  for (const Architecture& known : kArchitectures)
    names += std::string(names.empty() ? "" : ", ") + known.name;

  const json& list = in.Get("architectures");
  const json& type = in.Get("model_type");
  const Architecture* found = nullptr;
  if (list.is_null()) {
    for (const Architecture& known : kArchitectures) {
      if (type == known.model_type) found = &known;
    }
    if (found != nullptr) {
      warnings.push_back(in.file() + ": architectures is missing; model_type " + JsonText(type) + " means " +
                         found->name);
      return found;
    }
    in.Wrong("architectures", list, "a list with one of " + names);
    return nullptr;
  }
  if (!list.is_array() || list.size() != 1 || !list[0].is_string()) {
    in.Wrong("architectures", list, "a list with one of " + names);
    return nullptr;
  }
  for (const Architecture& known : kArchitectures) {
    if (list[0] == known.name) found = &known;
  }
  if (found == nullptr) {
    in.Refuse("architectures", list, "not implemented; known are " + names);
  } else if (!type.is_null() && type != found->model_type) {
    in.Refuse("model_type", type,
              std::string("with ") + found->name + " it must be \"" + found->model_type + "\"");
    return nullptr;
  }
  return found;
}

// rope_theta of `object` under `prefix` if it is there, and a refusal of every other kind of rotary
// embedding.
void ReadRopeObject(KeyReader& in, const std::string& name, std::vector<double>& thetas) {
  const json& object = in.Get(name);
  if (object.is_null()) return;
  if (!object.is_object()) {
    in.Wrong(name, object, "an object or null");
    return;
  }
  for (const auto& [key, value] : object.items()) {
    const std::string path = name + "." + key;
    if (key == "rope_theta") {
      KeyReader inner(object, in.file());
      thetas.push_back(inner.Number(key, 0, 1e15));
      if (!inner.status().ok()) in.Wrong(path, value, "a number above 0 to 1e15");
    } else if (key == "rope_type" || key == "type") {
      if (!value.is_null() && value != "default") {
        in.Refuse(path, value, "only \"default\" rotary embeddings are implemented");
      }
    } else if (!value.is_null() && !(key == "partial_rotary_factor" && value == 1)) {
      in.Refuse(path, value, "it changes the rotary embedding and is not implemented");
    }
  }
}

double ReadHuggingFaceTheta(KeyReader& in, std::vector<std::string>& warnings) {
  std::vector<double> thetas;
  if (in.Has("rope_theta")) thetas.push_back(in.Number("rope_theta", 0, 1e15));
  ReadRopeObject(in, "rope_parameters", thetas);  // releases from 5 on
  ReadRopeObject(in, "rope_scaling", thetas);
  if (thetas.empty()) {
    warnings.push_back(in.file() + ": rope_theta is missing; 10000 is taken, the format's default");
    return 10000.0;
  }
  if (std::count(thetas.begin(), thetas.end(), thetas[0]) != static_cast<int64_t>(thetas.size())) {
    in.Wrong("rope_theta", in.Get("rope_theta"), "the same number as in rope_parameters");
  }
  return thetas[0];
}

// [layers] from sliding_window, use_sliding_window and layer_types.
std::vector<int32_t> ReadHuggingFaceWindows(KeyReader& in, const Architecture& architecture, int32_t layers,
                                            int64_t context, std::vector<std::string>& warnings) {
  const bool used = in.BoolOr("use_sliding_window", true);
  const json& value = in.Get("sliding_window");
  if (!architecture.windowed) {
    if (!value.is_null() && used) {
      warnings.push_back(in.file() + ": sliding_window " + JsonText(value) + " has no meaning in " +
                         architecture.name + " and is ignored");
    }
    const json& types = in.Get("layer_types");
    if (!types.is_null() &&
        !(types.is_array() && std::all_of(types.begin(), types.end(),
                                          [](const json& type) { return type == "full_attention"; }))) {
      in.Refuse("layer_types", types,
                std::string("in ") + architecture.name + " every layer is full_attention");
    }
    return std::vector<int32_t>(layers, 0);
  }

  int32_t window = 0;
  if (!value.is_null() && used) window = static_cast<int32_t>(in.Int("sliding_window", 1, kMaxContext));
  constexpr int64_t kFormatsOwnWindow = 4096;
  if (!in.Contains("sliding_window") && context > kFormatsOwnWindow) {
    warnings.push_back(in.file() + ": sliding_window is missing: no window is taken (null says so plainly)");
  }
  const json& types = in.Get("layer_types");
  if (types.is_null()) return std::vector<int32_t>(layers, window);
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers) {
    in.Wrong("layer_types", types, "a list of num_hidden_layers = " + std::to_string(layers) + " entries");
    return std::vector<int32_t>(layers, 0);
  }
  std::vector<int32_t> windows;
  for (const json& type : types) {
    if (type == "sliding_attention") {
      if (window == 0) in.Wrong("sliding_window", value, "set, since layer_types has \"sliding_attention\"");
      windows.push_back(window);
    } else if (type == "full_attention") {
      windows.push_back(0);
    } else {
      in.Refuse("layer_types", type, "only \"sliding_attention\" and \"full_attention\" are implemented");
      windows.push_back(0);
    }
  }
  return windows;
}

// One entry of Mistral's own sliding_window: a number, the same as a string, or null for none.
int32_t MistralWindow(KeyReader& in, const std::string& key, const json& value) {
  if (value.is_null()) return 0;
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) {
      return static_cast<int32_t>(in.IntOf(key, number, 1, kMaxContext));
    }
  }
  return static_cast<int32_t>(in.IntOf(key, value, 1, kMaxContext));
}

// [layers]; a list is repeated over the layers.
std::vector<int32_t> ReadMistralWindows(KeyReader& in, int32_t layers) {
  std::string key = "sliding_window";
  if (in.Has("_sliding_window")) {
    if (in.Has(key))
      in.Wrong("_sliding_window", in.Get("_sliding_window"), "absent where sliding_window is set");
    key = "_sliding_window";
  }
  const json& value = in.Get(key);
  if (!value.is_array()) return std::vector<int32_t>(layers, MistralWindow(in, key, value));
  if (value.empty() || layers % static_cast<int64_t>(value.size()) != 0) {
    in.Wrong(key, value, "a list whose length divides n_layers = " + std::to_string(layers));
    return std::vector<int32_t>(layers, 0);
  }
  std::vector<int32_t> windows;
  for (int32_t layer = 0; layer < layers; ++layer) {
    windows.push_back(MistralWindow(in, key, value[layer % value.size()]));
  }
  return windows;
}

DType ReadWeightDType(KeyReader& in, std::vector<std::string>& warnings) {
  in.Get("torch_dtype");
  const std::string key = in.Has("dtype") ? "dtype" : "torch_dtype";
  const json& value = in.Get(key);
  if (value.is_null() || value == "bfloat16") return DType::kBf16;
  if (value == "float16") return DType::kF16;
  if (value == "float32") return DType::kF32;
  if (!value.is_string()) {
    in.Wrong(key, value, "\"bfloat16\", \"float16\" or \"float32\"");
  } else {
    warnings.push_back(in.file() + ": " + key + " " + JsonText(value) +
                       " is not known; the file headers decide");
  }
  return DType::kBf16;
}

// Ids of `key`: a number or a list. `fallback` where the key is absent; null means none.
std::vector<int32_t> ReadIds(KeyReader& in, const std::string& key, int32_t vocab,
                             std::vector<int32_t> fallback) {
  constexpr size_t kMaxIds = 256;
  if (!in.Contains(key)) return fallback;
  const json& value = in.Get(key);
  if (value.is_null()) return {};
  if (!value.is_array()) return {static_cast<int32_t>(in.Int(key, 0, vocab - 1))};
  if (value.size() > kMaxIds) in.Wrong(key, value, "a list of at most " + std::to_string(kMaxIds) + " ids");
  std::vector<int32_t> ids;
  for (const json& id : value) ids.push_back(static_cast<int32_t>(in.IntOf(key, id, 0, vocab - 1)));
  return ids;
}

void ReadSpecialIds(KeyReader& in, ModelConfig& config) {
  const std::vector<int32_t> bos = ReadIds(in, "bos_token_id", config.vocab_size, {config.bos_id});
  if (bos.size() > 1) in.Wrong("bos_token_id", in.Get("bos_token_id"), "one id");
  if (!bos.empty()) config.bos_id = bos[0];
  config.eos_ids = ReadIds(in, "eos_token_id", config.vocab_size, config.eos_ids);
}

// Special ids here take precedence over config.json's, as in Hugging Face's own generate().
Status ReadGenerationConfig(std::string_view text, const std::string& file, ModelConfig& config) {
  TM_ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, file));
  KeyReader in(object, file);
  ReadSpecialIds(in, config);
  ModelConfig::Defaults& defaults = config.defaults;
  if ((defaults.has_temperature = in.Has("temperature"))) {
    defaults.temperature = static_cast<float>(in.Number("temperature", 0, 100, /*inclusive=*/true));
  }
  if ((defaults.has_top_p = in.Has("top_p"))) defaults.top_p = static_cast<float>(in.Number("top_p", 0, 1));
  if ((defaults.has_top_k = in.Has("top_k"))) {
    defaults.top_k = static_cast<int32_t>(in.Int("top_k", 0, INT32_MAX));
  }
  return in.status();
}

// What both formats have to satisfy once read.
Status CheckDerived(KeyReader& in, const ModelConfig& config) {
  if (config.heads % config.kv_heads != 0) {
    in.Fail(InvalidArgument(std::to_string(config.heads) + " attention heads are not a multiple of " +
                            std::to_string(config.kv_heads) + " key-value heads"));
  }
  if (config.head_dim % 2 != 0) {
    in.Fail(InvalidArgument("head_dim is " + std::to_string(config.head_dim) +
                            "; it must be even, since rotary embeddings turn pairs"));
  }
  const std::set<int32_t> distinct(config.window.begin(), config.window.end());
  if (distinct.size() > kMaxKvGroups) {
    in.Fail(Unimplemented(std::to_string(distinct.size()) + " different sliding windows; the limit is " +
                          std::to_string(kMaxKvGroups)));
  }
  return in.status();
}

// hidden / heads, for files that leave head_dim out.
int32_t HeadDimFromHidden(KeyReader& in, const ModelConfig& config) {
  if (config.hidden_size % config.heads != 0) {
    in.Wrong("head_dim", nullptr,
             "given, since hidden size " + std::to_string(config.hidden_size) + " is not a multiple of " +
                 std::to_string(config.heads) + " heads");
  }
  return std::max(1, config.hidden_size / config.heads);
}

}  // namespace

StatusOr<ModelConfig> ParseHuggingFaceConfig(std::string_view text, std::string_view generation_config,
                                             const std::string& file, const std::string& generation_file) {
  TM_ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, file));
  KeyReader in(object, file);
  ModelConfig config;
  const Architecture* architecture = FindArchitecture(in, config.warnings);
  TM_RETURN_IF_ERROR(in.status());

  config.architecture = architecture->name;
  config.layout = FolderLayout::kHuggingFace;
  config.rotary_style = RotaryStyle::kHalfSplit;
  config.vocab_size = static_cast<int32_t>(in.Int("vocab_size", 1, kMaxVocab));
  config.hidden_size = static_cast<int32_t>(in.Int("hidden_size", 1, kMaxHidden));
  config.layers = static_cast<int32_t>(in.Int("num_hidden_layers", 1, kMaxLayers));
  config.heads = static_cast<int32_t>(in.Int("num_attention_heads", 1, kMaxHeads));
  config.kv_heads = static_cast<int32_t>(in.IntOr("num_key_value_heads", 1, kMaxHeads, config.heads));
  config.head_dim = in.Has("head_dim") ? static_cast<int32_t>(in.Int("head_dim", 2, kMaxHeadDim))
                                       : HeadDimFromHidden(in, config);
  config.intermediate_size = static_cast<int32_t>(in.Int("intermediate_size", 1, kMaxIntermediate));
  config.rms_epsilon = static_cast<float>(in.Number("rms_norm_eps", 1e-20, 0.1));
  config.rope_theta = ReadHuggingFaceTheta(in, config.warnings);
  config.tied_embeddings = in.BoolOr("tie_word_embeddings", false);
  config.context = in.Int("max_position_embeddings", 1, kMaxContext);
  config.window = ReadHuggingFaceWindows(in, *architecture, config.layers, config.context, config.warnings);
  config.weight_dtype = ReadWeightDType(in, config.warnings);
  if (config.vocab_size > 2) config.eos_ids = {2};
  ReadSpecialIds(in, config);
  CheckOtherKeys(in, config.warnings);
  TM_RETURN_IF_ERROR(CheckDerived(in, config));
  if (!generation_config.empty()) {
    TM_RETURN_IF_ERROR(ReadGenerationConfig(generation_config, generation_file, config));
  }
  return config;
}

StatusOr<ModelConfig> ParseMistralParams(std::string_view text, const std::string& file) {
  TM_ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, file));
  KeyReader in(object, file);
  ModelConfig config;
  config.architecture = "MistralForCausalLM";
  config.layout = FolderLayout::kMistral;
  config.rotary_style = RotaryStyle::kInterleaved;
  const json& type = in.Get("model_type");
  if (!type.is_null() && type != "transformer")
    in.Refuse("model_type", type, "only \"transformer\" is implemented");
  config.vocab_size = static_cast<int32_t>(in.Int("vocab_size", 1, kMaxVocab));
  config.hidden_size = static_cast<int32_t>(in.Int("dim", 1, kMaxHidden));
  config.layers = static_cast<int32_t>(in.Int("n_layers", 1, kMaxLayers));
  config.heads = static_cast<int32_t>(in.Int("n_heads", 1, kMaxHeads));
  config.kv_heads = static_cast<int32_t>(in.IntOr("n_kv_heads", 1, kMaxHeads, config.heads));
  config.head_dim = in.Has("head_dim") ? static_cast<int32_t>(in.Int("head_dim", 2, kMaxHeadDim))
                                       : HeadDimFromHidden(in, config);
  config.intermediate_size = static_cast<int32_t>(in.Int("hidden_dim", 1, kMaxIntermediate));
  config.rms_epsilon = static_cast<float>(in.Number("norm_eps", 1e-20, 0.1));
  config.tied_embeddings = in.BoolOr("tied_embeddings", false);
  config.window = ReadMistralWindows(in, config.layers);
  if (in.Has("rope_theta")) {
    config.rope_theta = in.Number("rope_theta", 0, 1e15);
  } else {
    // Early files with a window were made for 1e4, those without for 1e6, and neither wrote it down.
    const bool windowed =
        std::any_of(config.window.begin(), config.window.end(), [](int32_t w) { return w != 0; });
    config.rope_theta = windowed ? 1e4 : 1e6;
    config.warnings.push_back(file + ": rope_theta is missing; " + (windowed ? "10000" : "1000000") +
                              " is taken, as models " + (windowed ? "with" : "without") +
                              " a sliding window were made for");
  }
  if (in.Has("max_seq_len") || in.Has("max_position_embeddings")) {
    const int64_t least_of_both = std::min(in.IntOr("max_seq_len", 1, kMaxContext, kMaxContext),
                                           in.IntOr("max_position_embeddings", 1, kMaxContext, kMaxContext));
    config.context = least_of_both;
  } else {
    config.context = 128000;
    config.warnings.push_back(file +
                              ": max_seq_len is missing; a context of 128000 is taken, the format's habit");
  }
  config.weight_dtype = ReadWeightDType(in, config.warnings);
  if (config.vocab_size > 2) config.eos_ids = {2};
  ReadSpecialIds(in, config);
  CheckOtherKeys(in, config.warnings);
  TM_RETURN_IF_ERROR(CheckDerived(in, config));
  return config;
}

StatusOr<ModelConfig> LoadModelConfig(const std::string& folder) {
  TM_ASSIGN_OR_RETURN(const ModelFolder files, FindModelFiles(folder));
  const std::string file = files.PathOf(files.config_file);
  TM_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kMaxConfigBytes));
  if (files.layout == FolderLayout::kMistral) return ParseMistralParams(text, file);
  const std::string generation_file = files.PathOf("generation_config.json");
  std::string generation_config;
  if (FileExists(generation_file)) {
    TM_ASSIGN_OR_RETURN(generation_config, ReadFile(generation_file, kMaxConfigBytes));
    if (generation_config.empty()) return InvalidArgument(generation_file + ": the file is empty");
  }
  return ParseHuggingFaceConfig(text, generation_config, file, generation_file);
}

}  // namespace tramontane
