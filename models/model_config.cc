#include "models/model_config.h"

#include <algorithm>
#include <set>

#include "models/config_reader.h"
#include "models/files/built_in_files.h"
#include "models/files/read_file.h"
#include "models/gguf/gguf_file.h"
#include "models/kv_layout.h"
#include "models/model_folder.h"

namespace tramontane {

using nlohmann::json;

namespace {

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

}  // namespace

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

void ReadSpecialIds(KeyReader& in, ModelConfig& config) {
  const std::vector<int32_t> bos = ReadIds(in, "bos_token_id", config.vocab_size, {config.bos_id});
  if (bos.size() > 1) in.Wrong("bos_token_id", in.Get("bos_token_id"), "one id");
  if (!bos.empty()) config.bos_id = bos[0];
  config.eos_ids = ReadIds(in, "eos_token_id", config.vocab_size, config.eos_ids);
  if (in.Contains("eos_token_id")) config.eos_source = in.file().substr(in.file().rfind('/') + 1);
}

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

void ReadExperts(KeyReader& in, const std::string& experts, const std::string& per_token,
                 ModelConfig& config) {
  config.experts = static_cast<int32_t>(in.Int(experts, 1, kMaxExperts));
  config.experts_per_token = static_cast<int32_t>(in.Int(per_token, 1, config.experts));
}

int32_t HeadDimFromHidden(KeyReader& in, const ModelConfig& config) {
  if (config.hidden_size % config.heads != 0) {
    in.Wrong("head_dim", nullptr,
             "given, since hidden size " + std::to_string(config.hidden_size) + " is not a multiple of " +
                 std::to_string(config.heads) + " heads");
  }
  return std::max(1, config.hidden_size / config.heads);
}

namespace {

// What generate() would do besides, unless the value is the one that changes nothing.
void WarnOfOtherGeneration(KeyReader& in, std::vector<std::string>& warnings) {
  static const json kNeutral = json::parse(
      R"({"num_beams": 1, "penalty_alpha": 0, "typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0, "top_h": null,
          "guidance_scale": 1, "encoder_repetition_penalty": 1, "no_repeat_ngram_size": 0,
          "encoder_no_repeat_ngram_size": 0, "bad_words_ids": [], "suppress_tokens": [],
          "begin_suppress_tokens": [], "sequence_bias": {}, "forced_bos_token_id": null,
          "forced_eos_token_id": null, "exponential_decay_length_penalty": null, "min_new_tokens": 0,
          "min_length": 0})");
  for (const auto& [key, neutral] : kNeutral.items()) {
    if (!in.Has(key) || in.Get(key) == neutral) continue;
    warnings.push_back(in.file() + ": " + key + " is " + JsonText(in.Get(key)) + " and is left out");
  }
}

}  // namespace

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
    defaults.top_k = static_cast<int32_t>(in.Int("top_k", -1, INT32_MAX));
  }
  if (in.Has("min_p")) defaults.min_p = static_cast<float>(in.Number("min_p", 0, 1, /*inclusive=*/true));
  if (in.Has("repetition_penalty")) {
    defaults.repetition_penalty =
        static_cast<float>(in.Number("repetition_penalty", 0.01, 100, /*inclusive=*/true));
  }
  WarnOfOtherGeneration(in, config.warnings);
  return in.status();
}

namespace {

// What ModelOpt writes beside a config that need not say a word of it; where both sets of files are there, it
// is Hugging Face's.
Status ReadWhatModelOptSays(const ModelFolder& files, ModelConfig& config) {
  const std::string file = files.PathOf("hf_quant_config.json");
  const bool is_others = files.layout == FolderLayout::kMistral && FileExists(files.PathOf("config.json"));
  if (is_others || !FileExists(file)) return {};
  TM_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kMaxConfigBytes));
  TM_ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, file));
  KeyReader in(object, file);
  ReadModelOptFile(in, config);
  return in.status();
}

}  // namespace

StatusOr<ModelConfig> LoadModelConfig(const ModelFolder& files) {
  const std::string file = files.PathOf(files.config_file);
  if (files.layout == FolderLayout::kGguf) {
    // With all parts: where one is missing nothing else is worth saying.
    TM_ASSIGN_OR_RETURN(const std::vector<GgufFile> parts, OpenGgufParts(file));
    int64_t embedding_rows = 0;
    for (const GgufFile& part : parts) {
      const auto embedding = part.file.tensors().find("token_embd.weight");
      if (embedding != part.file.tensors().end()) embedding_rows = embedding->second.shape[0];
    }
    return ReadGgufConfig(parts[0].metadata, embedding_rows);
  }
  TM_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kMaxConfigBytes));
  const auto parse = files.layout == FolderLayout::kMistral ? ParseMistralParams : ParseHuggingFaceConfig;
  TM_ASSIGN_OR_RETURN(ModelConfig config, parse(text, file));
  config.warnings.insert(config.warnings.begin(), files.warnings.begin(), files.warnings.end());
  TM_RETURN_IF_ERROR(ReadWhatModelOptSays(files, config));
  const std::string generation_file = files.PathOf("generation_config.json");
  if (FileExists(generation_file)) {
    TM_ASSIGN_OR_RETURN(const std::string generation, ReadFile(generation_file, kMaxConfigBytes));
    TM_RETURN_IF_ERROR(ReadGenerationConfig(generation, generation_file, config));
  }
  return config;
}

}  // namespace tramontane
