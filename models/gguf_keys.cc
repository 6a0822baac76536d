// The keys of a GGUF file that nothing reads: which of them would change the computation, and which are known
// to be harmless. config_keys.cc is the same for JSON.
#include <algorithm>
#include <iterator>
#include <optional>

#include "models/gguf_key_reader.h"

namespace tramontane {
namespace {

// Keys of the architecture that change the computation, each with the numbers at which it does not (a bool is
// 0 or 1).
struct NeutralGgufKey {
  const char* key;
  double neutral;
  double also = neutral;
};
constexpr NeutralGgufKey kNeutralGgufKeys[] = {
    {"use_parallel_residual", 0},
    {"pooling_type", 0},
    {"logit_scale", 0, 1},
    {"residual_scale", 0, 1},
    {"embedding_scale", 0, 1},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"attention.causal", 1},
    {"attention.scale", 0},
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.temperature_scale", 0},
    {"rope.scale_linear", 0, 1},
    {"rope.scaling.attn_factor", 0, 1},
    {"rope.scaling.yarn_attn_factor", 1},
    {"rope.scaling.yarn_ext_factor", 1},
    {"leading_dense_block_count", 0},
    {"nextn_predict_layers", 0},
    {"expert_shared_count", 0},
    {"expert_group_count", 0, 1},
    {"expert_group_used_count", 0, 1},
    {"expert_weights_scale", 0, 1},
    {"expert_weights_norm", 1},
    {"expert_gating_func", 1},  // softmax
};

// A key of the architecture that is not known, with one of these in its name, is taken for one that changes
// the computation, unless its value is 0, false or empty.
constexpr const char* kSuspectGgufStems[] = {
    "rope",     "scal",      "bias",   "norm", "expert", "attention", "softcap",
    "residual", "embedding", "window", "ssm",  "moe",    "logit",     "feed_forward",
};

// Keys of the architecture without effect on inference. Silent.
constexpr const char* kHarmlessGgufKeys[] = {
    "tensor_data_layout",
    "rope.scaling.finetuned",
    "interleave_moe_layer_step",
};

// Keys that are no architecture's: of the file, the tokenizer and how it was quantised. Silent.
constexpr const char* kOtherGgufPrefixes[] = {"general.", "tokenizer.", "split.", "quantize."};

std::optional<double> NumberOf(const GgufMetadata& metadata, const std::string& path) {
  if (const auto whole = metadata.Int(path, INT64_MIN, INT64_MAX); whole.ok())
    return static_cast<double>(*whole);
  if (const auto number = metadata.Number(path); number.ok()) return *number;
  if (const auto flag = metadata.Bool(path); flag.ok()) return *flag ? 1.0 : 0.0;
  return std::nullopt;
}

bool IsEmpty(const GgufMetadata& metadata, const std::string& path, const GgufValue& value) {
  return value.bytes.empty() || NumberOf(metadata, path) == 0.0;
}

template <size_t kCount>
bool ContainsAny(std::string_view name, const char* const (&stems)[kCount]) {
  return std::any_of(std::begin(stems), std::end(stems),
                     [&](const char* stem) { return name.find(stem) != std::string_view::npos; });
}

void CheckArchitectureKey(GgufKeyReader& in, const std::string& key, const GgufValue& value,
                          std::vector<std::string>& warnings) {
  const std::string path = in.PathOf(key);
  for (const NeutralGgufKey& rule : kNeutralGgufKeys) {
    if (key != rule.key) continue;
    const std::optional<double> number = NumberOf(in.metadata(), path);
    if (number != rule.neutral && number != rule.also) {
      in.Refuse(key, "it changes the computation and is not implemented");
    }
    return;
  }
  if (std::find(std::begin(kHarmlessGgufKeys), std::end(kHarmlessGgufKeys), key) !=
      std::end(kHarmlessGgufKeys))
    return;
  if (ContainsAny(key, kSuspectGgufStems) && !IsEmpty(in.metadata(), path, value)) {
    in.Refuse(key, "this key is not known and by its name may change the computation");
    return;
  }
  warnings.push_back(in.metadata().file() + ": unknown key \"" + Excerpt(path) + "\" is ignored (" +
                     GgufMetadata::Text(value) + ")");
}

}  // namespace

void CheckOtherGgufKeys(GgufKeyReader& in, std::vector<std::string>& warnings) {
  constexpr size_t kMaxUnknown = 8;
  size_t unknown = 0;
  for (const auto& [path, value] : in.metadata().values()) {
    if (in.WasRead(path)) continue;
    if (path.starts_with(in.prefix())) {
      CheckArchitectureKey(in, path.substr(in.prefix().size()), value, warnings);
      continue;
    }
    const bool of_others =
        std::any_of(std::begin(kOtherGgufPrefixes), std::end(kOtherGgufPrefixes),
                    [&path = path](const char* prefix) { return path.starts_with(prefix); });
    if (of_others || ++unknown > kMaxUnknown) continue;
    warnings.push_back(in.metadata().file() + ": unknown key \"" + Excerpt(path) + "\" is ignored (" +
                       GgufMetadata::Text(value) + ")");
  }
  if (unknown > kMaxUnknown) {
    warnings.push_back("and " + std::to_string(unknown - kMaxUnknown) + " more keys are ignored");
  }
}

}  // namespace tramontane
