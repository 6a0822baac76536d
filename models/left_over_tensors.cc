#include "models/left_over_tensors.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <string_view>

#include "models/tensor_values.h"

namespace tramontane {
namespace {

// Whether `name` lies in a layer that the model runs.
bool InsideALayer(const std::string& name, const std::string& prefix, const ModelConfig& config) {
  if (!name.starts_with(prefix)) return false;
  int32_t layer = -1;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
  return layer >= 0 && layer < config.layers;
}

template <size_t kCount>
bool EndsWithOneOf(std::string_view name, const std::string_view (&endings)[kCount]) {
  return std::any_of(std::begin(endings), std::end(endings),
                     [name](std::string_view ending) { return name.ends_with(ending); });
}

// Whether `name` is of the part for images, in either layout.
bool IsOfVision(std::string_view name) {
  constexpr std::string_view kPrefixes[] = {
      "model.vision_tower.", "model.multi_modal_projector.", "vision_tower.", "multi_modal_projector.",
      "vision_encoder.",     "vision_language_adapter.",     "patch_merger.", "pre_mm_projector_norm."};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [name](std::string_view prefix) { return name.starts_with(prefix); });
}

// Whether `name` is beside one of these: what holds "lm_head.weight" and "lm_head.bias" is computed with
// both.
bool BesideAUsed(const std::string& name, const std::set<std::string>& used) {
  const std::string module = name.substr(0, name.rfind('.') + 1);
  const auto next = used.lower_bound(module);
  return !module.empty() && next != used.end() && next->starts_with(module) &&
         next->find('.', module.size()) == std::string::npos;
}

int64_t Elements(const TensorInfo& tensor) {
  int64_t count = 1;
  for (const int64_t size : tensor.shape) count *= size;
  return count;
}

bool IsAll(const FoundTensor& found, std::byte byte) {
  const std::byte* const end = found.data() + (found.tensor->end - found.tensor->begin);
  return std::all_of(found.data(), end, [byte](std::byte one) { return one == byte; });
}

// Zeros of any type and sign.
bool IsZero(const FoundTensor& found) {
  if (IsAll(found, std::byte{0})) return true;
  if (!HasValues(*found.tensor)) return false;
  bool zero = true;
  ReadValues(*found.file, *found.tensor, [&zero](std::span<const float> values) {
    zero = zero && std::all_of(values.begin(), values.end(), [](float value) { return value == 0.0f; });
  });
  return zero;
}

constexpr int64_t kMostBiases = int64_t{1} << 22;  // of a tensor that is looked at

// A vector that would be added to what a module gives.
bool IsZeroBias(const std::string& name, const FoundTensor& found) {
  const TensorInfo& tensor = *found.tensor;
  return name.ends_with(".bias") && tensor.shape.size() == 1 && Elements(tensor) <= kMostBiases &&
         IsZero(found);
}

// Zero points of numbers that have none, and groups of columns that are in order.
bool IsTrivialOfCodes(const std::string& name, const FoundTensor& found) {
  if (Elements(*found.tensor) > kMostBiases) return false;
  if (name.ends_with(".weight_zero_point")) return IsZero(found);
  constexpr std::string_view kNoGroup = ".weight_g_idx";  // of -1 alone
  return name.ends_with(kNoGroup) && found.tensor->dtype_name == "I32" && IsAll(found, std::byte{0xff});
}

// By which what a model computes would be rounded to eight bits, which is not done: at most one for each
// head.
bool IsScaleOfRounding(const std::string& name, const FoundTensor& found, const ModelConfig& config) {
  constexpr std::string_view kScales[] = {
      ".k_scale",      ".v_scale",          ".q_scale",         ".kv_scale",     ".prob_scale",
      ".k_zero_point", ".v_zero_point",     ".q_zero_point",    ".output_scale", ".input_scale",
      ".qscale_act",   ".input_zero_point", ".activation_scale"};
  return EndsWithOneOf(name, kScales) && Elements(*found.tensor) <= config.heads;
}

// Tensors left out for one reason, as one warning.
struct LeftOut {
  std::string what;  // they are
  std::string first = {};
  int64_t count = 0;

  bool Add(const std::string& name) {
    if (count++ == 0) first = name;
    return true;
  }
  void Warn(const std::string& file, ModelConfig& config) const {
    if (count == 0) return;
    config.warnings.push_back(file + ": tensor " + first +
                              (count == 1 ? " is" : " and " + std::to_string(count - 1) + " more are") +
                              " left out: " + what);
  }
};

}  // namespace

Status CheckLeftOver(const std::map<std::string, FoundTensor>& all, const std::set<std::string>& used,
                     const LeftOverNames& names, ModelConfig& config) {
  constexpr size_t kMaxWarnings = 8;
  const bool is_gguf = config.layout == FolderLayout::kGguf;
  LeftOut zeros = {.what = "zeros, which added change nothing"};
  LeftOut trivial = {.what = "of symmetric numbers in order it says nothing"};
  LeftOut scales = {.what = "scales of activations, queries, keys and values are not used"};
  size_t left_over = 0;
  for (const auto& [name, found] : all) {
    // Rotary frequencies that old releases stored follow from rope_theta.
    if (used.count(name) != 0 || name.ends_with(".inv_freq") || name == "rope.freqs") continue;
    if (config.tied_embeddings && name == names.head) continue;
    if (is_gguf && name == names.divisors) continue;  // AdoptTensors read it
    if (!config.wrapper.empty() && IsOfVision(name)) continue;
    // What a GGUF file holds is all of its model: nothing stands there for another program.
    if (InsideALayer(name, names.layers, config) || BesideAUsed(name, used) || is_gguf) {
      if (IsZeroBias(name, found) && zeros.Add(name)) continue;
      if (IsTrivialOfCodes(name, found) && trivial.Add(name)) continue;
      if (IsScaleOfRounding(name, found, config) && scales.Add(name)) continue;
      return Unimplemented(found.file->path() + ": tensor " + name +
                           " is no part of this architecture: leaving it out would change the computation");
    }
    if (++left_over <= kMaxWarnings) {
      config.warnings.push_back(found.file->path() + ": tensor " + name + " is not used");
    }
  }
  for (const LeftOut* left_out : {&zeros, &trivial, &scales}) {
    if (left_out->count > 0) left_out->Warn(all.at(left_out->first).file->path(), config);
  }
  if (left_over > kMaxWarnings) {
    config.warnings.push_back("and " + std::to_string(left_over - kMaxWarnings) +
                              " more tensors are not used");
  }
  return Status::Ok();
}

}  // namespace tramontane
