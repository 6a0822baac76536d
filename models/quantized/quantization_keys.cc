// The keys of a config about quantised weights. Each is used, known to be without effect on what is computed,
// or refused by name.
#include <algorithm>
#include <initializer_list>

#include "models/config_reader.h"

namespace tramontane {
namespace {

using nlohmann::json;

// How weights were found, of what and by whom, and how another program runs them: what AutoGPTQ, GPTQModel,
// AutoAWQ, AutoRound, llm-compressor and transformers write, whatever the form. What is computed from a
// file's numbers does not depend on it.
constexpr const char* kRecipeKeys[] = {
    // who made it
    "quant_method", "method", "provider", "producer", "creator", "autoround_version", "version_info", "meta",
    "model_name_or_path", "model_file_base_name", "tokenizer", "model_free",
    // on which texts
    "dataset", "nsamples", "n_samples", "seqlen", "model_seqlen", "batch_size", "pad_token_id", "calib_data",
    "max_calib_samples", "max_calib_seq_len", "max_input_length",
    // how scales and numbers were searched for
    "damp_percent", "damp_auto_increment", "true_sequential", "static_groups", "mse", "act_group_aware",
    "hyb_act", "gptaq", "foem", "hessian", "fallback", "failsafe", "failsafe_with_rtn", "iters", "lr",
    "minmax_lr", "lr_scheduler", "momentum", "sampler", "seed", "nblocks", "gradient_accumulate_steps",
    "not_use_best_mse", "dynamic_max_gap", "enable_minmax_tuning", "enable_norm_bias_tuning",
    "enable_quanted_input", "enable_full_range", "disable_opt_rtn", "enable_alg_ext", "alg_ext", "amp",
    "duo_scaling", "apply_clip", "n_parallel_calib_samples", "clip", "observer", "observer_kwargs",
    // which modules were meant: the arrays say which are
    "lm_head", "quant_lm_head", "block_name_to_quantize", "module_name_preceding_first_block",
    "modules_in_block_to_quantize", "inside_layer_modules", "to_quant_block_names", "quant_block_list",
    "supported_types",
    // in how much memory
    "low_gpu_mem_usage", "low_cpu_mem_usage", "cache_block_outputs", "cache_examples_on_gpu",
    "offload_to_disk", "offload_to_disk_path", "pack_impl", "parallel_packing", "vram_strategy", "gc_mode",
    "wait_for_submodule_finalizers", "auto_forward_data_parallel", "compute_device_filter", "device", "v2",
    "v2_alpha", "v2_memory_device", "scale_dtype",
    // how another program runs it
    "backend", "use_cuda_fp16", "use_exllama", "disable_exllama", "exllama_config", "do_fuse",
    "fuse_max_seq_len", "modules_to_fuse", "dequantize", "global_compression_ratio"};

// What is left after all that is known was read: a key that nobody knows may change the computation.
void RefuseOthers(KeyReader& in, std::initializer_list<const char*> harmless) {
  for (const char* key : harmless) in.Get(key);
  for (const std::string& key : in.Unread()) {
    const json& value = in.Get(key);
    const bool nothing =
        value.is_null() || value == false || ((value.is_array() || value.is_object()) && value.empty());
    if (!nothing) in.Refuse(key, value, "this key of quantised weights is not known");
  }
}

void PassOverRecipe(KeyReader& in) {
  for (const char* key : kRecipeKeys) in.Get(key);
}

// Strings of a list, or of nothing.
std::vector<std::string> ReadNames(KeyReader& in, const std::string& key) {
  const json& list = in.Get(key);
  std::vector<std::string> names;
  if (list.is_null()) return names;
  const bool strings = list.is_array() && std::all_of(list.begin(), list.end(),
                                                      [](const json& name) { return name.is_string(); });
  if (!strings) {
    in.Wrong(key, list, "a list of names");
    return names;
  }
  for (const json& name : list) names.push_back(name.get<std::string>());
  return names;
}

constexpr size_t kMaxExpressions = 100;  // of a config

// Names of modules, of classes, and expressions.
std::vector<ModulePattern> ReadModules(KeyReader& in, const std::string& key) {
  std::vector<ModulePattern> patterns;
  size_t expressions = 0;
  for (const std::string& text : ReadNames(in, key)) {
    StatusOr<ModulePattern> pattern = ModulePattern::Parse(text);
    if (!pattern.ok()) {
      in.Wrong(key, text, pattern.status().message());
      continue;
    }
    expressions += pattern->is_expression() ? 1 : 0;
    patterns.push_back(std::move(pattern).value());
  }
  if (expressions > kMaxExpressions) {
    in.Refuse(key, in.Get(key),
              "of " + std::to_string(expressions) + " expressions; the limit is " +
                  std::to_string(kMaxExpressions));
  }
  return patterns;
}

// Only what stands in the list is implemented.
bool OneOf(KeyReader& in, const std::string& key, std::initializer_list<json> known, const std::string& why) {
  const json& value = in.Get(key);
  if (std::find(known.begin(), known.end(), value) != known.end()) return true;
  in.Refuse(key, value, why);
  return false;
}

int32_t ReadBits(KeyReader& in, const std::string& key, std::initializer_list<int32_t> known) {
  const auto bits = static_cast<int32_t>(in.Int(key, 1, 64));
  if (std::find(known.begin(), known.end(), bits) != known.end()) return bits;
  in.Refuse(key, in.Get(key),
            known.size() == 1 ? "only " + std::to_string(*known.begin()) + " bits are implemented here"
                              : "only 4 and 8 bits are implemented");
  return 8;
}

constexpr int64_t kMaxGroup = int64_t{1} << 20;

// -1 is a scale for each row.
int64_t ReadGroup(KeyReader& in, const std::string& key) {
  if (in.Get(key) == -1) return 0;
  return in.Int(key, 1, kMaxGroup);
}

// Two sizes.
void ReadBlock(KeyReader& in, const std::string& key, CodingScheme& scheme) {
  const json& block = in.Get(key);
  if (!block.is_array() || block.size() != 2) {
    in.Wrong(key, block, "a list of two sizes");
    return;
  }
  scheme.scale_rows = in.IntOf(key, block[0], 1, kMaxGroup);
  scheme.scale_columns = in.IntOf(key, block[1], 1, kMaxGroup);
}

void WarnOfActivations(const KeyReader& in, const std::string& key, ModelConfig& config) {
  config.warnings.push_back(in.file() + ": " + in.PathOf(key) +
                            " rounds activations, which is left out: only the weights are as it says");
}

// ---- compressed-tensors -------------------------------------------------------------------------

constexpr char kKnownForms[] = "only pack-quantized, int-quantized and float-quantized are implemented";
// What older releases call either of the latter two.
constexpr char kNaive[] = "naive-quantized";

// of_float: the type of a group's weights, which tells what the naive form is.
bool ReadForm(KeyReader& in, const std::string& key, bool of_float, WeightCoding& coding) {
  const json& form = in.Get(key);
  if (form == "pack-quantized") {
    coding = WeightCoding::kPackQuantized;
  } else if (form == "int-quantized" || (form == kNaive && !of_float)) {
    coding = WeightCoding::kIntQuantized;
  } else if (form == "float-quantized" || form == kNaive) {
    coding = WeightCoding::kFloatQuantized;
  } else {
    in.Refuse(key, form, kKnownForms);
    return false;
  }
  return true;
}

void ReadStrategy(KeyReader& in, CodingScheme& scheme) {
  const json& strategy = in.Get("strategy");
  const bool grouped = in.Has("group_size") && in.Get("group_size") != -1;
  if (strategy == "tensor") {
    scheme.scale_rows = 0;
  } else if (strategy == "group" || (strategy.is_null() && grouped)) {
    scheme.scale_columns = ReadGroup(in, "group_size");
  } else if (strategy == "block") {
    ReadBlock(in, "block_structure", scheme);
  } else if (strategy != "channel") {
    in.Refuse("strategy", strategy, "only tensor, channel, group and block are implemented");
  }
  in.Get("group_size");
  in.Get("block_structure");
}

// `weights` of a group of modules.
void ReadWeightArguments(KeyReader& in, WeightCoding coding, CodingScheme& scheme) {
  scheme.coding = coding;
  const bool is_float = coding == WeightCoding::kFloatQuantized;
  if (is_float || coding == WeightCoding::kIntQuantized) {
    ReadBits(in, "num_bits", {8});
  } else {
    scheme.bits = ReadBits(in, "num_bits", {4, 8});
  }
  OneOf(in, "type",
        is_float ? std::initializer_list<json>{"float"} : std::initializer_list<json>{"int", nullptr},
        std::string("with this format it must be \"") + (is_float ? "float" : "int") + "\"");
  scheme.symmetric = in.BoolOr("symmetric", true);
  if (is_float && !scheme.symmetric) in.Refuse("symmetric", false, "fp8 weights have no zero points");
  ReadStrategy(in, scheme);
  OneOf(in, "dynamic", {nullptr, false}, "weights have scales of their own");
  const json& order = in.Get("actorder");
  scheme.has_column_groups = (order == "group" || order == true) && scheme.scale_columns != 0;
  OneOf(in, "actorder", {nullptr, false, true, "group", "weight", "static"},
        "only group, weight and static are known");
  RefuseOthers(in, {"observer", "observer_kwargs", "scale_dtype", "zp_dtype"});
}

// Which of two schemes a module has that both name in the same words is for the order of a file's keys to
// say.
void RefuseRepeated(KeyReader& in, const std::vector<ModulePattern>& targets,
                    const std::vector<CodingScheme>& before) {
  for (const ModulePattern& target : targets) {
    for (const CodingScheme& scheme : before) {
      const bool repeated =
          std::any_of(scheme.targets.begin(), scheme.targets.end(),
                      [&target](const ModulePattern& other) { return other.text() == target.text(); });
      if (repeated) in.Wrong("targets", target.text(), "in one group alone");
    }
  }
}

void ReadModuleGroup(KeyReader& in, const json& form, ModelConfig& config) {
  WeightCoding coding = WeightCoding::kPackQuantized;
  const json& weights = in.Get("weights");
  const bool of_float = weights.is_object() && weights.value("type", json()) == "float";
  if (in.Has("format")) {
    ReadForm(in, "format", of_float, coding);
  } else {
    const json outer = {{"format", form}};
    KeyReader of_all(outer, in.file(), "quantization_config.");
    ReadForm(of_all, "format", of_float, coding);
    in.Fail(of_all.status());
  }
  CodingScheme scheme;
  if (!in.Has("targets")) in.Wrong("targets", json(), "a list of names");
  scheme.targets = ReadModules(in, "targets");
  RefuseRepeated(in, scheme.targets, config.quantization.schemes);
  if (!weights.is_object()) {
    in.Wrong("weights", weights, "an object");
    return;
  }
  KeyReader arguments(weights, in.file(), in.PathOf("weights."));
  ReadWeightArguments(arguments, coding, scheme);
  in.Fail(arguments.status());
  config.quantization.schemes.push_back(std::move(scheme));
  if (in.Has("input_activations")) WarnOfActivations(in, "input_activations", config);
  OneOf(in, "output_activations", {nullptr}, "rounding what a layer gives is not implemented");
  RefuseOthers(in, {});
}

// What `format` says of a file none of whose weights are compressed.
constexpr char kDense[] = "dense";

// Keys and values in fp8 with one scale a layer for each, the one scheme there is here.
void ReadKvCacheScheme(KeyReader& in, ModelConfig& config) {
  const json& scheme = in.Get("kv_cache_scheme");
  if (scheme.is_null()) return;
  if (!scheme.is_object()) return in.Wrong("kv_cache_scheme", scheme, "an object");
  KeyReader of_scheme(scheme, in.file(), in.PathOf("kv_cache_scheme."));
  ReadBits(of_scheme, "num_bits", {8});
  OneOf(of_scheme, "type", {"float"}, "keys and values with scales of the file's are fp8 (float)");
  OneOf(of_scheme, "strategy", {nullptr, "tensor"},
        "a layer has one scale for its keys and one for its values");
  OneOf(of_scheme, "dynamic", {nullptr, false}, "the scales are those of the file");
  OneOf(of_scheme, "symmetric", {nullptr, true}, "fp8 has no zero points");
  RefuseOthers(of_scheme, {"group_size", "block_structure", "actorder", "observer", "observer_kwargs",
                           "scale_dtype", "zp_dtype"});
  in.Fail(of_scheme.status());
  config.quantization.has_kv_scales = true;
}

void ReadCompressedTensors(KeyReader& in, ModelConfig& config) {
  const json& form = in.Get("format");
  ReadKvCacheScheme(in, config);
  WeightCoding coding = WeightCoding::kPackQuantized;
  // Of a mixture each group names its own.
  const json& groups = in.Get("config_groups");
  const bool says_nothing = form.is_null() && (groups.is_null() || (groups.is_object() && groups.empty()));
  const bool is_dense = (form == kDense && config.quantization.has_kv_scales) || says_nothing;
  if (form != "mixed-precision" && !is_dense && !ReadForm(in, "format", false, coding)) return;
  if (says_nothing) {
    config.warnings.push_back(in.file() + ": " + in.PathOf("config_groups") +
                              " is missing: no weights are taken for quantised");
  }
  if (!is_dense && (!groups.is_object() || groups.empty())) {
    in.Wrong("config_groups", groups, "an object with at least one group");
    return;
  }
  if (is_dense && groups.is_object() && !groups.empty())
    return in.Wrong("config_groups", groups, "empty where the format is dense");
  for (const auto& [name, group] : groups.items()) {
    if (!group.is_object()) {
      in.Wrong("config_groups", groups, "an object of objects");
      return;
    }
    KeyReader of_group(group, in.file(), in.PathOf("config_groups." + name + "."));
    ReadModuleGroup(of_group, form, config);
    in.Fail(of_group.status());
  }
  config.quantization.kept = ReadModules(in, "ignore");
  // Of a frozen model, too, the arrays say what is compressed.
  OneOf(in, "quantization_status", {nullptr, "compressed", "frozen"}, "only compressed weights can be read");
  const json& sparsity = in.Get("sparsity_config");
  if (sparsity.is_object() && !sparsity.empty() && sparsity.value("format", json()) != "dense")
    in.Refuse("sparsity_config", sparsity, "sparse weights are not implemented");
  PassOverRecipe(in);
  RefuseOthers(in, {"version"});
}

// ---- AWQ and GPTQ -------------------------------------------------------------------------------

// What AutoRound says of numbers and of activations, where it is what the form says anyway.
void ReadAutoRoundTypes(KeyReader& in, ModelConfig& config) {
  OneOf(in, "data_type", {nullptr, "int", "int_sym", "int_asym"},
        "the numbers of this form are integers (int)");
  if (in.Has("act_bits") && in.Int("act_bits", 1, 64) < 16) WarnOfActivations(in, "act_bits", config);
  for (const char* key : {"act_data_type", "act_group_size", "act_sym", "act_dynamic"}) in.Get(key);
}

// AutoRound's layers that have a form of their own: taken where they are plain, which the arrays say too.
void ReadExtraConfig(KeyReader& in) {
  constexpr char kKey[] = "extra_config";
  const json& layers = in.Get(kKey);
  if (layers.is_null()) return;
  if (!layers.is_object()) return in.Wrong(kKey, layers, "an object");
  for (const auto& [name, own] : layers.items()) {
    const json bits = own.is_object() ? own.value("bits", json()) : json();
    const bool is_plain = bits.is_number() && bits >= 16;
    if (!is_plain) in.Refuse(kKey, own, name + " has a form of its own, which is not implemented");
  }
}

void ReadAwq(KeyReader& in, ModelConfig& config) {
  CodingScheme scheme = {.coding = WeightCoding::kAwq};
  scheme.bits = ReadBits(in, in.Has("w_bit") ? "w_bit" : "bits", {4});
  scheme.scale_columns = ReadGroup(in, in.Has("q_group_size") ? "q_group_size" : "group_size");
  for (const char* key : {"version", "format", "checkpoint_format"})
    OneOf(in, key, {nullptr, "gemm", "GEMM"}, "only gemm is implemented");
  OneOf(in, "pack_dtype", {nullptr, "int32"}, "only words of 32 bits are implemented");
  OneOf(in, "desc_act", {nullptr, false}, "columns in another order are not implemented here");
  // Zero points that stand in the file count either way.
  scheme.symmetric = !in.BoolOr("zero_point", !in.BoolOr("sym", false));
  ReadAutoRoundTypes(in, config);
  ReadExtraConfig(in);
  config.quantization.schemes.push_back(scheme);
  config.quantization.kept = ReadModules(in, "modules_to_not_convert");
  PassOverRecipe(in);
  RefuseOthers(in, {});
}

void ReadGptq(KeyReader& in, ModelConfig& config) {
  CodingScheme scheme = {.coding = WeightCoding::kGptq, .symmetric = false};
  scheme.bits = ReadBits(in, "bits", {4, 8});
  scheme.scale_columns = ReadGroup(in, "group_size");
  const char* key = in.Has("checkpoint_format") ? "checkpoint_format" : "format";
  const json& form = in.Get(key);
  OneOf(in, key, {nullptr, "gptq", "gptq_v2"}, "only gptq and gptq_v2 are implemented");
  if (in.Has("format") && in.Get("format") != form)
    in.Wrong("format", in.Get("format"), "the same as checkpoint_format");
  scheme.zero_offset = form == "gptq_v2" ? 0 : 1;
  OneOf(in, "is_marlin_format", {nullptr, false}, "weights in the order of Marlin are not implemented");
  OneOf(in, "pack_dtype", {nullptr, "int32"}, "only words of 32 bits are implemented");
  // Which group a column is of g_idx says.
  scheme.has_column_groups = true;
  scheme.needs_column_groups = in.BoolOr("desc_act", false) && scheme.scale_columns != 0;
  // Zero points stand in the file either way.
  in.BoolOr("sym", true);
  ReadAutoRoundTypes(in, config);
  ReadExtraConfig(in);
  config.quantization.schemes.push_back(scheme);
  PassOverRecipe(in);
  RefuseOthers(in, {});
}

// ---- fp8 ----------------------------------------------------------------------------------------

void ReadFp8(KeyReader& in, ModelConfig& config) {
  CodingScheme scheme = {.coding = WeightCoding::kFp8, .scale_rows = 0};
  if (in.Has("weight_block_size")) ReadBlock(in, "weight_block_size", scheme);
  OneOf(in, "fmt", {nullptr, "e4m3"}, "only e4m3 is implemented");
  OneOf(in, "activation_scheme", {nullptr, "dynamic", "static"}, "only dynamic and static are known");
  WarnOfActivations(in, "activation_scheme", config);
  config.quantization.schemes.push_back(scheme);
  config.quantization.kept = ReadModules(in, "modules_to_not_convert");
  for (ModulePattern& module : ReadModules(in, "ignored_layers"))
    config.quantization.kept.push_back(std::move(module));
  for (const char* key : {"kv_cache_scheme", "kv_cache_quant_targets"}) {
    if (in.Has(key)) {
      config.warnings.push_back(in.file() + ": " + in.PathOf(key) +
                                " is left out: keys and values are kept as --kv-dtype says");
    }
  }
  PassOverRecipe(in);
  // How scales of activations are rounded.
  RefuseOthers(in, {"scale_fmt"});
}

}  // namespace

namespace {

constexpr char kModelOpt[] = "weights quantised by NVIDIA's ModelOpt are not implemented";

// `name`: of the object.
void ReadQuantizationObject(KeyReader& outer, const std::string& name, ModelConfig& config) {
  KeyReader in(outer.Get(name), outer.file(), outer.PathOf(name) + ".");
  const json& method = in.Get("quant_method");
  if (method == "compressed-tensors" || method == "compressed_tensors") {
    ReadCompressedTensors(in, config);
  } else if (method == "awq") {
    ReadAwq(in, config);
  } else if (method == "gptq") {
    ReadGptq(in, config);
  } else if (method == "fp8") {
    ReadFp8(in, config);
  } else if (in.Has("quant_algo")) {
    in.Refuse("quant_algo", in.Get("quant_algo"), kModelOpt);
  } else if (method == "modelopt" || method == "modelopt_fp4") {
    in.Refuse("quant_method", method, kModelOpt);
  } else {
    in.Refuse("quant_method", method, "only compressed-tensors, awq, gptq and fp8 are implemented");
  }
  outer.Fail(in.status());
}

// Whether there is an object of that name which says something.
bool SaysSomething(KeyReader& outer, const std::string& name) {
  const json& object = outer.Get(name);
  if (object.is_null() || (object.is_object() && object.empty())) return false;
  if (!object.is_object()) outer.Wrong(name, object, "an object or null");
  return object.is_object();
}

}  // namespace

void ReadQuantization(KeyReader& outer, ModelConfig& config) {
  constexpr char kName[] = "quantization_config";
  if (SaysSomething(outer, kName)) ReadQuantizationObject(outer, kName, config);
}

void ReadMistralQuantization(KeyReader& outer, ModelConfig& config) {
  ReadQuantization(outer, config);
  if (!SaysSomething(outer, "quantization")) return;
  const json& object = outer.Get("quantization");
  if (!config.quantization.schemes.empty()) {
    outer.Wrong("quantization", object, "absent where quantization_config is set");
    return;
  }
  if (object.contains("quant_method") || object.contains("quant_algo"))
    return ReadQuantizationObject(outer, "quantization", config);
  KeyReader in(object, outer.file(), outer.PathOf("quantization."));
  OneOf(in, "qformat_weight", {"fp8_e4m3"}, "only fp8_e4m3 is implemented");
  OneOf(in, "qscheme_act", {nullptr, "TENSOR", "NO_SCALES"}, "only TENSOR and NO_SCALES are known");
  WarnOfActivations(in, "qscheme_act", config);
  config.quantization.schemes.push_back({.coding = WeightCoding::kMistralFp8, .scale_rows = 0});
  RefuseOthers(in, {});
  outer.Fail(in.status());
}

void ReadModelOptFile(KeyReader& in, ModelConfig& config) {
  const json& object = in.Get("quantization");
  if (!object.is_object()) return in.Wrong("quantization", object, "an object");
  // Of a config that says how its arrays are to be read it is a copy.
  if (!config.quantization.schemes.empty()) return;
  KeyReader of_weights(object, in.file(), "quantization.");
  if (of_weights.Has("quant_algo")) of_weights.Refuse("quant_algo", of_weights.Get("quant_algo"), kModelOpt);
  if (of_weights.Has("kv_cache_quant_algo")) {
    config.warnings.push_back(in.file() +
                              ": quantization.kv_cache_quant_algo is left out: keys and values are " +
                              "kept as --kv-dtype says");
  }
  in.Fail(of_weights.status());
}

}  // namespace tramontane
