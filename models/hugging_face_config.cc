// config.json and generation_config.json.
#include <algorithm>

#include "models/architecture.h"
#include "models/config_reader.h"

namespace tramontane {
namespace {

using nlohmann::json;

const Architecture* ReadArchitecture(KeyReader& in, std::vector<std::string>& warnings) {
  std::string names;
  for (const Architecture& known : Architectures())
    names += std::string(names.empty() ? "" : ", ") + known.name;

  const json& list = in.Get("architectures");
  const json& type = in.Get("model_type");
  const Architecture* found = nullptr;
  if (list.is_null()) {
    for (const Architecture& known : Architectures()) {
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
  for (const Architecture& known : Architectures()) {
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
  if (!value.is_null() && used) window = static_cast<int32_t>(in.Int("sliding_window", 1, kMaxPositions));
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

}  // namespace

StatusOr<ModelConfig> ParseHuggingFaceConfig(std::string_view text, std::string_view generation_config,
                                             const std::string& file, const std::string& generation_file) {
  TM_ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, file));
  KeyReader in(object, file);
  ModelConfig config;
  const Architecture* architecture = ReadArchitecture(in, config.warnings);
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
  config.context = in.Int("max_position_embeddings", 1, kMaxPositions);
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

}  // namespace tramontane
