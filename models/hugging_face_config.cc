// config.json and generation_config.json.
#include <algorithm>

#include "models/architecture.h"
#include "models/config_reader.h"

namespace tramontane {
namespace {

using nlohmann::json;

// A model for text and images: its text part is served.
constexpr char kWrapperName[] = "Mistral3ForConditionalGeneration";
constexpr char kWrapperType[] = "mistral3";

std::string KnownNames() {
  std::string names;
  for (const Architecture& known : Architectures()) names += std::string(known.name) + ", ";
  return names + kWrapperName;
}

const Architecture* WithName(const json& name) {
  for (const Architecture& known : Architectures()) {
    if (name == known.name) return &known;
  }
  return nullptr;
}

const Architecture* WithType(const json& type) {
  for (const Architecture& known : Architectures()) {
    if (type == known.model_type) return &known;
  }
  return nullptr;
}

// architectures and model_type must agree.
bool TypeFits(KeyReader& in, const json& type, const char* name, const char* model_type) {
  if (type.is_null() || type == model_type) return true;
  in.Refuse("model_type", type, std::string("with ") + name + " it must be \"" + model_type + "\"");
  return false;
}

bool IsWrapper(KeyReader& in) {
  const json& list = in.Get("architectures");
  if (list.is_null()) return in.Get("model_type") == kWrapperType;
  return list.is_array() && list.size() == 1 && list[0] == kWrapperName;
}

const Architecture* ReadArchitecture(KeyReader& in, std::vector<std::string>& warnings) {
  const json& list = in.Get("architectures");
  const json& type = in.Get("model_type");
  if (list.is_null()) {
    const Architecture* found = WithType(type);
    if (found != nullptr) {
      warnings.push_back(in.file() + ": architectures is missing; model_type " + JsonText(type) + " means " +
                         found->name);
      return found;
    }
    in.Wrong("architectures", list, "a list with one of " + KnownNames());
    return nullptr;
  }
  if (!list.is_array() || list.size() != 1 || !list[0].is_string()) {
    in.Wrong("architectures", list, "a list with one of " + KnownNames());
    return nullptr;
  }
  const Architecture* found = WithName(list[0]);
  if (found == nullptr) {
    in.Refuse("architectures", list, "not implemented; known are " + KnownNames());
    return nullptr;
  }
  return TypeFits(in, type, found->name, found->model_type) ? found : nullptr;
}

// Of text_config, which need not name its class.
const Architecture* ReadTextArchitecture(KeyReader& in) {
  const json& type = in.Get("model_type");
  in.Get("architectures");
  if (type == "mistral4") {
    in.Refuse("model_type", type, "latent attention (MLA) is not implemented");
    return nullptr;
  }
  const Architecture* found = type.is_null() ? WithType(json("mistral")) : WithType(type);
  if (found == nullptr) {
    std::string types;
    for (const Architecture& known : Architectures()) {
      types += std::string(types.empty() ? "" : ", ") + known.model_type;
    }
    in.Refuse("model_type", type, "not implemented; known are " + types);
  }
  return found;
}

// Llama's class takes no window and has layers of one kind.
void CheckUnwindowed(KeyReader& in, const Architecture& architecture, bool used,
                     std::vector<std::string>& warnings) {
  const json& value = in.Get("sliding_window");
  if (!value.is_null() && used) {
    warnings.push_back(in.file() + ": " + in.PathOf("sliding_window") + " " + JsonText(value) +
                       " has no meaning in " + architecture.name + " and is ignored");
  }
  const json& types = in.Get("layer_types");
  const bool full = types.is_array() && std::all_of(types.begin(), types.end(), [](const json& type) {
                      return type == "full_attention";
                    });
  if (!types.is_null() && !full) {
    in.Refuse("layer_types", types,
              std::string("in ") + architecture.name + " every layer is full_attention");
  }
}

// Null is no window; a key that is absent is its class's default.
int32_t ReadWindow(KeyReader& in, const Architecture& architecture, bool used,
                   std::vector<std::string>& warnings) {
  if (!used) {
    in.Get("sliding_window");
    return 0;
  }
  if (in.Has("sliding_window")) return static_cast<int32_t>(in.Int("sliding_window", 1, kMaxPositions));
  if (!in.Contains("sliding_window") && architecture.default_window != 0) {
    warnings.push_back(in.file() + ": " + in.PathOf("sliding_window") + " is missing; " +
                       std::to_string(architecture.default_window) + " is taken, the default of " +
                       architecture.name + " (null says none)");
    return architecture.default_window;
  }
  return 0;
}

std::vector<int32_t> ReadLayerTypes(KeyReader& in, const json& types, int32_t layers, int32_t window) {
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers) {
    in.Wrong("layer_types", types, "a list of num_hidden_layers = " + std::to_string(layers) + " entries");
    return std::vector<int32_t>(layers, 0);
  }
  std::vector<int32_t> windows;
  for (const json& type : types) {
    if (type == "sliding_attention") {
      if (window == 0) {
        in.Wrong("sliding_window", in.Get("sliding_window"),
                 "set, since layer_types has \"sliding_attention\"");
      }
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

// Releases with this vocabulary were made without a window, but some carry the config of one that was not.
void WarnOfDoubtfulWindow(KeyReader& in, const ModelConfig& config, int32_t window,
                          std::vector<std::string>& warnings) {
  constexpr int32_t kVocabularyOfV3 = 32768;
  if (window == 0 || config.vocab_size != kVocabularyOfV3) return;
  warnings.push_back(in.file() + ": " + in.PathOf("sliding_window") + " " + std::to_string(window) +
                     " is honoured, though releases with a vocabulary of " + std::to_string(kVocabularyOfV3) +
                     " were made without one");
}

// [layers] from sliding_window, use_sliding_window and layer_types.
std::vector<int32_t> ReadHuggingFaceWindows(KeyReader& in, const Architecture& architecture,
                                            const ModelConfig& config, std::vector<std::string>& warnings) {
  const bool used = in.BoolOr("use_sliding_window", true);
  if (!architecture.windowed) {
    CheckUnwindowed(in, architecture, used, warnings);
    return std::vector<int32_t>(config.layers, 0);
  }
  const int32_t window = ReadWindow(in, architecture, used, warnings);
  WarnOfDoubtfulWindow(in, config, window, warnings);
  const json& types = in.Get("layer_types");
  const std::vector<int32_t> all(config.layers, window);
  if (types.is_null()) return all;
  if (architecture.layer_types) return ReadLayerTypes(in, types, config.layers, window);
  const char* meant = window == 0 ? "full_attention" : "sliding_attention";
  const bool agrees = types.is_array() && std::all_of(types.begin(), types.end(),
                                                      [meant](const json& type) { return type == meant; });
  if (!agrees) {
    warnings.push_back(in.file() + ": " + in.PathOf("layer_types") + " has no meaning in " +
                       architecture.name + " and is ignored: every layer is " + meant);
  }
  return all;
}

// What is under text_config of a wrapper, and the whole file of any other model.
void ReadTextModel(KeyReader& in, const Architecture& architecture, ModelConfig& config) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) in.Get(key);
  // From which layer on they have a window, where any has.
  if (in.Get("use_sliding_window") == false) in.Get("max_window_layers");
  if (architecture.experts) ReadExperts(in, "num_local_experts", "num_experts_per_tok", config);
  ReadQuantization(in, config);
  RefuseOtherComputations(in);
  config.architecture = architecture.name;
  config.vocab_size = static_cast<int32_t>(in.Int("vocab_size", 1, kMaxVocab));
  config.hidden_size = static_cast<int32_t>(in.Int("hidden_size", 1, kMaxHidden));
  config.layers = static_cast<int32_t>(in.Int("num_hidden_layers", 1, kMaxLayers));
  config.heads = static_cast<int32_t>(in.Int("num_attention_heads", 1, kMaxHeads));
  config.kv_heads = static_cast<int32_t>(in.IntOr("num_key_value_heads", 1, kMaxHeads, config.heads));
  config.head_dim = in.Has("head_dim") ? static_cast<int32_t>(in.Int("head_dim", 2, kMaxHeadDim))
                                       : HeadDimFromHidden(in, config);
  config.intermediate_size = static_cast<int32_t>(in.Int("intermediate_size", 1, kMaxIntermediate));
  config.rms_epsilon = static_cast<float>(in.Number("rms_norm_eps", 1e-20, 0.1));
  config.context = in.Int("max_position_embeddings", 1, kMaxPositions);
  ReadHuggingFaceRope(in, architecture, config);
  config.window = ReadHuggingFaceWindows(in, architecture, config, config.warnings);
  config.tied_embeddings = in.BoolOr("tie_word_embeddings", false);
  config.weight_dtype = ReadWeightDType(in, config.warnings);
  if (config.vocab_size > 2) config.eos_ids = {2};
  ReadSpecialIds(in, config);
  CheckOtherKeys(in, config.warnings);
}

// The class ties embeddings unless told otherwise, and files hold an output matrix all the same.
void ReadWrapperTying(KeyReader& in, KeyReader& text, ModelConfig& config) {
  const bool outer = in.BoolOr("tie_word_embeddings", false),
             inner = text.BoolOr("tie_word_embeddings", false);
  const bool said = in.Has("tie_word_embeddings") || text.Has("tie_word_embeddings");
  config.tied_embeddings = outer || inner;
  config.tied_if_no_head = outer || inner || !said;
}

void ReadWrapper(KeyReader& in, ModelConfig& config) {
  TypeFits(in, in.Get("model_type"), kWrapperName, kWrapperType);
  const json& object = in.Get("text_config");
  if (!object.is_object()) {
    in.Wrong("text_config", object, "an object");
    return;
  }
  // Of the part for images, which is not served.
  for (const char* key : {"vision_config", "image_token_index", "image_token_id", "projector_hidden_act",
                          "vision_feature_layer", "multimodal_projector_bias", "spatial_merge_size"}) {
    in.Get(key);
  }
  ReadQuantization(in, config);
  RefuseOtherComputations(in);
  KeyReader text(object, in.file(), "text_config.");
  const Architecture* architecture = ReadTextArchitecture(text);
  in.Fail(text.status());
  if (architecture == nullptr) return;
  config.wrapper = kWrapperName;
  config.body_prefix = "model.language_model.";
  ReadTextModel(text, *architecture, config);
  in.Fail(text.status());
  if (in.Has("dtype") || in.Has("torch_dtype")) config.weight_dtype = ReadWeightDType(in, config.warnings);
  ReadWrapperTying(in, text, config);
  if (in.Has("eos_token_id") || in.Has("bos_token_id")) ReadSpecialIds(in, config);
  CheckOtherKeys(in, config.warnings);
}

}  // namespace

StatusOr<ModelConfig> ParseHuggingFaceConfig(std::string_view text, const std::string& file) {
  TM_ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, file));
  KeyReader in(object, file);
  ModelConfig config;
  config.layout = FolderLayout::kHuggingFace;
  config.rotary_style = RotaryStyle::kHalfSplit;
  if (IsWrapper(in)) {
    ReadWrapper(in, config);
  } else if (const Architecture* architecture = ReadArchitecture(in, config.warnings)) {
    ReadTextModel(in, *architecture, config);
  }
  TM_RETURN_IF_ERROR(in.status());
  TM_RETURN_IF_ERROR(CheckDerived(in, config));
  return config;
}

}  // namespace tramontane
