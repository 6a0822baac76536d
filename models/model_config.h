// What a model is, read from its folder's config files and checked: dimensions, windows, rotary convention.
// Any thread once loaded; a plain value.
// Always: every field is in range, every layer has a window entry, heads % kv_heads == 0, head_dim is even,
// and no key that would change the computation was passed over (such keys are refused by name).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/status.h"
#include "models/quantized/quantization.h"
#include "models/rope_scaling.h"

namespace tramontane {

enum class FolderLayout {
  kHuggingFace,  // config.json + model*.safetensors
  kMistral,      // params.json + consolidated*.safetensors
  kGguf,         // one file, or its parts
};

struct ModelConfig {
  std::string architecture;  // a row of the table in architecture.cc: "MistralForCausalLM", ...
  FolderLayout layout = FolderLayout::kHuggingFace;
  // The config is of a model for text and images, of which the text part is served; else empty.
  std::string wrapper;  // "Mistral3ForConditionalGeneration", "vision_encoder"
  // What stands before the names of the text part's tensors in Hugging Face files.
  std::string body_prefix = "model.";
  std::string head_prefix;
  int32_t vocab_size = 0;     // rows of the embedding
  int32_t padding_begin = 0;  // rows from here on fill it up and are of no token; 0: none is known to
  int32_t hidden_size = 0;
  int32_t layers = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;           // its own number: never hidden_size / heads unless the file leaves it out
  int32_t intermediate_size = 0;  // of each expert, where there are any
  int32_t experts = 0;            // of each layer; 0: feed-forward layers are whole
  int32_t experts_per_token = 0;
  float rms_epsilon = 0.0f;
  double rope_theta = 0.0;
  RopeScaling rope_scaling;
  QueryScaling query_scaling;
  RotaryStyle rotary_style = RotaryStyle::kHalfSplit;
  bool tied_embeddings = false;
  bool tied_if_no_head = false;  // the config does not settle it: tied where the files hold no output matrix
  int64_t context = 0;           // positions the model was made for
  std::vector<int32_t> window;   // [layers] keys a query sees, itself included; 0: all
  DType weight_dtype = DType::kBf16;  // what the config says of its weights; the file headers decide
  Quantization quantization;
  int32_t bos_id = 1;
  std::vector<int32_t> eos_ids;           // generation ends at any of these
  std::string eos_source = "by default";  // which file says so
  std::vector<std::string> warnings;      // unknown or doubtful keys, one sentence each

  // Ids that may be drawn are below it.
  int32_t drawn_ids() const { return padding_begin > 0 ? std::min(padding_begin, vocab_size) : vocab_size; }

  // From generation_config.json; unset where the folder says nothing.
  struct Defaults {
    bool has_temperature = false, has_top_p = false, has_top_k = false;
    float temperature = 1.0f;
    float top_p = 1.0f;
    int32_t top_k = 0;  // 0 or -1: all
    float min_p = 0.0f;
    float repetition_penalty = 1.0f;
  } defaults;
};

struct ModelFolder;
class GgufMetadata;

// Reads config.json or params.json, whichever the folder chose, and generation_config.json, which goes with
// either; or the keys of a GGUF file. Errors name the file, the key and the value.
StatusOr<ModelConfig> LoadModelConfig(const ModelFolder& files);

// The same from text. `file` names the source in messages.
StatusOr<ModelConfig> ParseHuggingFaceConfig(std::string_view text, const std::string& file);
StatusOr<ModelConfig> ParseMistralParams(std::string_view text, const std::string& file);
// From the keys of a GGUF file. Embeddings are tied where its tensors lack an output matrix. embedding_rows:
// of the tensor, for files that have neither a tokenizer nor the key; 0: not known.
StatusOr<ModelConfig> ReadGgufConfig(const GgufMetadata& metadata, int64_t embedding_rows = 0);
// generation_config.json: how answers are sampled where a request does not say, and which ids end them.
// Replaces what `config` says of these.
Status ReadGenerationConfig(std::string_view text, const std::string& file, ModelConfig& config);

}  // namespace tramontane
