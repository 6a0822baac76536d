// The keys that nothing reads: which of them would change the computation, and which are known to be
// harmless.
#include <algorithm>

#include "models/config_reader.h"

namespace tramontane {
namespace {

using nlohmann::json;

// Keys that change the computation, each with the values (besides null) at which it does not. Any other value
// is refused: passed over, it would give fluent garbage.
struct NeutralKey {
  const char* key;
  const char* neutral;        // JSON list
  const char* why = nullptr;  // what the key stands for, where its name does not say it
};
constexpr char kQuantised[] = "quantised weights are not read from this key";
constexpr char kOtherMixture[] = "of mixtures of experts only Mixtral's are implemented";
constexpr char kLatent[] = "latent attention (MLA) is not implemented";
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
    {"max_window_layers", "[0]"},
    {"causal", "[true]"},
    {"is_causal", "[true]"},
    {"prefix_lm", "[false]"},
    // scales and caps
    {"pretraining_tp", "[1]"},
    {"attn_logit_softcapping", "[]"},
    {"final_logit_softcapping", "[]"},
    {"clip_qkv", "[]"},
    {"logit_cap", "[]"},
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
    {"parallel_block", "[false]"},
    {"num_kv_shared_layers", "[0]"},
    {"use_mup", "[false]"},
    // quantisation and adapters
    {"quantization_config", "[{}]", kQuantised},
    {"quantization", "[{}]", kQuantised},
    {"compression_config", "[{}]", kQuantised},
    {"lora", "[]"},
    {"adapters", "[]"},
    // latent attention and state-space layers
    {"q_lora_rank", "[]", kLatent},
    {"kv_lora_rank", "[]", kLatent},
    {"qk_nope_head_dim", "[]", kLatent},
    {"qk_rope_head_dim", "[]", kLatent},
    {"v_head_dim", "[]", kLatent},
    {"mamba_d_state", "[]"},
    {"mamba_d_conv", "[]"},
    {"ssm_cfg", "[]"},
    {"state_size", "[]"},
    {"attn_layer_indices", "[]"},
    // mixtures of experts
    {"moe", "[]", kOtherMixture},
    {"num_experts", "[0]", kOtherMixture},
    {"num_local_experts", "[0]", kOtherMixture},
    {"n_routed_experts", "[0]", kOtherMixture},
    {"n_shared_experts", "[0]", kOtherMixture},
    {"num_experts_per_tok", "[0]", kOtherMixture},
    {"moe_intermediate_size", "[0]", kOtherMixture},
    {"first_k_dense_replace", "[]", kOtherMixture},
    {"num_nextn_predict_layers", "[0]"},
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
    "rope",       "rotary",    "scal",       "bias",        "norm",  "quant",   "moe",   "expert",
    "router",     "mamba",     "ssm",        "lora",        "mla",   "softcap", "sink",  "alibi",
    "multiplier", "adapter",   "vision",     "audio",       "image", "window",  "attn_", "attention",
    "residual",   "embedding", "activation", "layer_types", "clip",  "sparse",
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
    // of training alone, in mixtures of experts
    "router_aux_loss_coef",
    "router_jitter_noise",
    "output_router_logits",
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

bool ChangesNothing(const json& value) {
  return value.is_null() || value == false || value == 0 || value == "" ||
         ((value.is_array() || value.is_object()) && value.empty());
}

}  // namespace

void RefuseOtherComputations(KeyReader& in) {
  for (const NeutralKey& rule : kNeutralKeys) {
    if (in.WasRead(rule.key)) continue;
    const json& value = in.Get(rule.key);
    const json neutral = json::parse(rule.neutral);
    if (!value.is_null() && std::find(neutral.begin(), neutral.end(), value) == neutral.end()) {
      in.Refuse(rule.key, value,
                rule.why != nullptr ? rule.why : "it changes the computation and is not implemented");
    }
  }
}

void CheckOtherKeys(KeyReader& in, std::vector<std::string>& warnings) {
  for (const char* key : kHarmlessKeys) in.Get(key);
  for (const std::string& key : in.Unread()) {
    const json& value = in.Get(key);
    const bool suspect = std::any_of(std::begin(kSuspectStems), std::end(kSuspectStems),
                                     [&](const char* stem) { return key.find(stem) != std::string::npos; });
    if (suspect && !ChangesNothing(value)) {
      in.Refuse(key, value, "this key is not known and by its name may change the computation");
    } else {
      warnings.push_back(in.file() + ": unknown key " + JsonText(in.PathOf(key)) + " is ignored (" +
                         JsonText(value) + ")");
    }
  }
}

}  // namespace tramontane
