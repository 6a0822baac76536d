// What a config says of rotary embeddings beyond their theta: rope_scaling of older releases and
// rope_parameters of newer ones, and yarn and llama_4_scaling of params.json.
#include <algorithm>

#include "models/architecture.h"
#include "models/config_reader.h"

namespace tramontane {
namespace {

using nlohmann::json;

constexpr double kMaxFactor = 1e6;
constexpr double kMaxTurns = 1e6;

// The context that the model was first made for: the model's own where it is not said.
double ReadOriginalContext(KeyReader& in, int64_t context) {
  return static_cast<double>(in.IntOr("original_max_position_embeddings", 1, kMaxPositions, context));
}

double ReadFactor(KeyReader& in, int64_t context, double original_context) {
  if (in.Has("factor")) return in.Number("factor", 1.0, kMaxFactor, /*inclusive=*/true);
  return std::max(1.0, static_cast<double>(context) / original_context);
}

double NumberOr(KeyReader& in, const std::string& key, double most, double fallback) {
  return in.Has(key) ? in.Number(key, 0, most) : fallback;
}

void ReadLlama3(KeyReader& in, RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::kLlama3;
  scaling.factor = in.Number("factor", 1.0, kMaxFactor, /*inclusive=*/true);
  scaling.slow = in.Number("low_freq_factor", 0, kMaxTurns);
  scaling.fast = in.Number("high_freq_factor", 0, kMaxTurns);
  if (scaling.fast <= scaling.slow) {
    in.Wrong("high_freq_factor", in.Get("high_freq_factor"), "more than low_freq_factor");
  }
}

double ReadMagnitude(KeyReader& in, double factor) {
  const auto read = [&in](const char* key) {
    return in.Has(key) ? in.Number(key, 0, kMaxFactor, /*inclusive=*/true) : 0.0;
  };
  const double mscale = read("mscale"), mscale_all_dim = read("mscale_all_dim");
  if (in.Has("attention_factor")) return in.Number("attention_factor", 0, kMaxFactor);
  const bool both = mscale != 0.0 && mscale_all_dim != 0.0;
  return both ? YarnMagnitude(factor, mscale, mscale_all_dim) : YarnMagnitude(factor, 1.0, 0.0);
}

void ReadYarn(KeyReader& in, int64_t context, RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::kYarn;
  scaling.factor = ReadFactor(in, context, scaling.original_context);
  scaling.fast = NumberOr(in, "beta_fast", kMaxTurns, 32.0);
  scaling.slow = NumberOr(in, "beta_slow", kMaxTurns, 1.0);
  scaling.truncate = in.BoolOr("truncate", true);
  scaling.magnitude = ReadMagnitude(in, scaling.factor);
  in.Get("max_position_embeddings");  // repeated there by some releases, and read by none
  if (scaling.fast < scaling.slow) in.Wrong("beta_fast", in.Get("beta_fast"), "at least beta_slow");
}

// YaRN places its band by the logarithm of theta.
void CheckTheta(KeyReader& in, const ModelConfig& config) {
  if (config.rope_scaling.kind == RopeScaling::Kind::kYarn && config.rope_theta <= 1.0) {
    in.Wrong("rope_theta", config.rope_theta, "above 1 with YaRN");
  }
}

// What rope_scaling or rope_parameters says.
struct RopeObject {
  bool given = false;
  double theta = 0.0;  // 0: not said
  RopeScaling scaling;
  QueryScaling query_scaling;
};

std::string ReadKind(KeyReader& in) {
  const json& name = in.Has("rope_type") ? in.Get("rope_type") : in.Get("type");
  const json& other = in.Get("type");
  if (!name.is_null() && !other.is_null() && name != other) in.Wrong("type", other, "the same as rope_type");
  if (name.is_null() || name == "default") return "default";
  if (name == "llama3" || name == "yarn") return name.get<std::string>();
  in.Refuse(in.Has("rope_type") ? "rope_type" : "type", name,
            "only \"default\", \"llama3\" and \"yarn\" rotary embeddings are implemented");
  return "default";
}

void RefuseUnreadRopeKeys(KeyReader& in) {
  for (const std::string& key : in.Unread()) {
    const json& value = in.Get(key);
    // "finetuned" says of old files that their model was trained so; what is computed is the same.
    const bool neutral =
        (key == "partial_rotary_factor" && value == 1) || (key == "finetuned" && value == true);
    if (!value.is_null() && !neutral) {
      in.Refuse(key, value, "it changes the rotary embedding and is not implemented");
    }
  }
}

RopeObject ReadRopeObject(KeyReader& outer, const std::string& name, const Architecture& architecture,
                          int64_t context) {
  RopeObject rope;
  const json& object = outer.Get(name);
  if (object.is_null()) return rope;
  if (!object.is_object()) {
    outer.Wrong(name, object, "an object or null");
    return rope;
  }
  rope.given = true;
  KeyReader in(object, outer.file(), outer.PathOf(name) + ".");
  if (in.Has("rope_theta")) rope.theta = in.Number("rope_theta", kMinTheta, kMaxTheta);
  const std::string kind = ReadKind(in);
  if (kind != "default") rope.scaling.original_context = ReadOriginalContext(in, context);
  if (kind == "llama3") ReadLlama3(in, rope.scaling);
  if (kind == "yarn") ReadYarn(in, context, rope.scaling);
  if (architecture.query_scaling && kind == "yarn" && in.Has("llama_4_scaling_beta")) {
    rope.query_scaling.beta = in.Number("llama_4_scaling_beta", 0, 100, /*inclusive=*/true);
    rope.query_scaling.positions = static_cast<int32_t>(rope.scaling.original_context);
  }
  RefuseUnreadRopeKeys(in);
  outer.Fail(in.status());
  return rope;
}

}  // namespace

void ReadHuggingFaceRope(KeyReader& in, const Architecture& architecture, ModelConfig& config) {
  const RopeObject newer = ReadRopeObject(in, "rope_parameters", architecture, config.context);
  const RopeObject older = ReadRopeObject(in, "rope_scaling", architecture, config.context);
  if (newer.scaling.kind != RopeScaling::Kind::kNone && older.scaling.kind != RopeScaling::Kind::kNone) {
    in.Wrong("rope_scaling", in.Get("rope_scaling"), "absent where rope_parameters says the same");
  }
  const RopeObject& scaled = newer.scaling.kind != RopeScaling::Kind::kNone ? newer : older;
  config.rope_scaling = scaled.scaling;
  config.query_scaling = scaled.query_scaling;
  if (architecture.query_scaling && !newer.given && !older.given) {
    in.Wrong("rope_parameters", nullptr, std::string("given in ") + architecture.name);
  }

  std::vector<double> thetas;
  if (in.Has("rope_theta")) thetas.push_back(in.Number("rope_theta", kMinTheta, kMaxTheta));
  for (const RopeObject* rope : {&newer, &older}) {
    if (rope->theta != 0.0) thetas.push_back(rope->theta);
  }
  if (thetas.empty()) {
    config.rope_theta = static_cast<double>(architecture.default_theta);
    config.warnings.push_back(in.file() + ": rope_theta is missing; " +
                              std::to_string(architecture.default_theta) + " is taken, the default of " +
                              architecture.name);
    return;
  }
  if (std::count(thetas.begin(), thetas.end(), thetas[0]) != static_cast<int64_t>(thetas.size())) {
    in.Wrong("rope_theta", in.Get("rope_theta"), "the same number as in rope_parameters");
  }
  config.rope_theta = thetas[0];
  CheckTheta(in, config);
}

void ReadMistralRopeScaling(KeyReader& outer, ModelConfig& config) {
  const auto object_of = [&](const std::string& name) -> const json* {
    const json& object = outer.Get(name);
    if (object.is_null()) return nullptr;
    if (!object.is_object()) outer.Wrong(name, object, "an object or null");
    return object.is_object() ? &object : nullptr;
  };
  if (const json* yarn = object_of("yarn")) {
    KeyReader in(*yarn, outer.file(), "yarn.");
    RopeScaling& scaling = config.rope_scaling;
    scaling.kind = RopeScaling::Kind::kYarn;
    scaling.original_context =
        static_cast<double>(in.Int("original_max_position_embeddings", 1, kMaxPositions));
    scaling.factor = in.Number("factor", 1.0, kMaxFactor, /*inclusive=*/true);
    scaling.fast = NumberOr(in, "beta", kMaxTurns, 32.0);
    scaling.slow = NumberOr(in, "alpha", kMaxTurns, 1.0);
    if (scaling.fast < scaling.slow) in.Wrong("beta", in.Get("beta"), "at least alpha");
    // As vLLM reads it. Releases say it either way.
    if (in.BoolOr("apply_scale", true)) scaling.magnitude = YarnMagnitude(scaling.factor, 1.0, 0.0);
    if (!in.Has("apply_scale")) {
      config.warnings.push_back(in.file() + ": yarn.apply_scale is missing; true is taken, as vLLM takes it");
    }
    RefuseUnreadRopeKeys(in);
    outer.Fail(in.status());
  }
  if (const json* llama_4 = object_of("llama_4_scaling")) {
    KeyReader in(*llama_4, outer.file(), "llama_4_scaling.");
    config.query_scaling.beta = in.Number("beta", 0, 100, /*inclusive=*/true);
    config.query_scaling.positions =
        static_cast<int32_t>(in.Int("original_max_position_embeddings", 1, kMaxPositions));
    RefuseUnreadRopeKeys(in);
    outer.Fail(in.status());
  }
  CheckTheta(outer, config);
}

}  // namespace tramontane
