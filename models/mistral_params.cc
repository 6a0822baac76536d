// params.json, Mistral's own format.
#include <algorithm>
#include <charconv>

#include "models/config_reader.h"

namespace tramontane {
namespace {

using nlohmann::json;

// One entry of Mistral's own sliding_window: a number, the same as a string, or null for none.
int32_t MistralWindow(KeyReader& in, const std::string& key, const json& value) {
  if (value.is_null()) return 0;
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) {
      return static_cast<int32_t>(in.IntOf(key, number, 1, kMaxPositions));
    }
  }
  return static_cast<int32_t>(in.IntOf(key, value, 1, kMaxPositions));
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

// Where `moe` is set, layers are mixtures of experts.
void ReadMistralExperts(KeyReader& outer, ModelConfig& config) {
  const json& object = outer.Get("moe");
  if (object.is_null()) return;
  if (!object.is_object()) {
    outer.Wrong("moe", object, "an object or null");
    return;
  }
  config.architecture = "MixtralForCausalLM";
  KeyReader in(object, outer.file(), "moe.");
  ReadExperts(in, "num_experts", "num_experts_per_tok", config);
  for (const std::string& key : in.Unread()) {
    in.Refuse(key, in.Get(key), "of mixtures of experts only Mixtral's are implemented");
  }
  outer.Fail(in.status());
}

}  // namespace

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
  // Read below, or not at all: the vision part is left out.
  for (const char* key : {"yarn", "llama_4_scaling", "vision_encoder", "moe"}) in.Get(key);
  const json& vision = in.Get("vision_encoder");
  if (vision.is_object() && !vision.empty()) config.wrapper = "vision_encoder";
  if (!vision.is_object() && !vision.is_null()) in.Wrong("vision_encoder", vision, "an object or null");
  ReadMistralQuantization(in, config);
  RefuseOtherComputations(in);
  ReadMistralExperts(in, config);
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
    config.rope_theta = in.Number("rope_theta", kMinTheta, kMaxTheta);
  } else {
    // Early files with a window were made for 1e4, those without for 1e6, and neither wrote it down.
    const bool windowed =
        std::any_of(config.window.begin(), config.window.end(), [](int32_t w) { return w != 0; });
    config.rope_theta = windowed ? 1e4 : 1e6;
    config.warnings.push_back(file + ": rope_theta is missing; " + (windowed ? "10000" : "1000000") +
                              " is taken, as models " + (windowed ? "with" : "without") +
                              " a sliding window were made for");
  }
  ReadMistralRopeScaling(in, config);
  if (in.Has("max_seq_len") || in.Has("max_position_embeddings")) {
    const int64_t least_of_both =
        std::min(in.IntOr("max_seq_len", 1, kMaxPositions, kMaxPositions),
                 in.IntOr("max_position_embeddings", 1, kMaxPositions, kMaxPositions));
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

}  // namespace tramontane
