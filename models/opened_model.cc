#include "models/opened_model.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/core/kv_quantize.h"
#include "models/files/built_in_files.h"
#include "models/files/tensor_file.h"

namespace tramontane {

namespace {

constexpr int32_t kDefaultKvGroup = 32;

}  // namespace

StatusOr<Format> KvElementOf(const KvOptions& kv, int32_t head_dim) {
  const bool in_groups = kv.dtype == DType::kInt8 || kv.dtype == DType::kInt4;
  if (!in_groups && kv.group != 0) {
    return InvalidArgument("kv_group is " + std::to_string(kv.group) + ", and kv_dtype " +
                           DTypeName(kv.dtype) + " has no groups: only int8 and int4 have");
  }
  if (kv.dtype == DType::kFp8E4M3) return Format::BareFp8();
  if (!in_groups) return Format(kv.dtype);
  const int32_t group = kv.group == 0 ? std::min(kDefaultKvGroup, head_dim) : kv.group;
  constexpr int32_t kLeast = 1 << kMinKvGroupLog2, kMost = 1 << kMaxKvGroupLog2;
  if (group < kLeast || group > kMost || !std::has_single_bit(static_cast<uint32_t>(group))) {
    return InvalidArgument("kv_group is " + std::to_string(group) + ", it must be a power of two from " +
                           std::to_string(kLeast) + " to " + std::to_string(kMost));
  }
  if (head_dim % group != 0) {
    return InvalidArgument("kv_group is " + std::to_string(group) + ", it must divide head_dim, " +
                           std::to_string(head_dim));
  }
  return Format::WithScalesApart(kv.dtype, std::countr_zero(static_cast<uint32_t>(group)));
}

StatusOr<OpenedModel> OpenModel(const std::string& path, const KvOptions& kv, const FileChoice& choice) {
  if (kv.page_size < 1 || kv.page_size > kMaxPageSize) {
    return InvalidArgument("page_size is " + std::to_string(kv.page_size) + ", the limits are 1 to " +
                           std::to_string(kMaxPageSize));
  }
  TM_ASSIGN_OR_RETURN(ModelFolder files, FindModelFiles(path, choice));
  TM_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(files));
  StatusOr<WeightFiles> weight_files = WeightFiles::Open(files, config.quantization);
  if (weight_files.ok()) TM_RETURN_IF_ERROR(AdoptTensors(*weight_files, config));
  TM_ASSIGN_OR_RETURN(std::vector<std::string> file_names, NamesInFolder(files.path));
  std::vector<WeightSpec> weights = ListWeights(config);
  if (weight_files.ok()) {
    const Status checked = CheckTensors(weights, *weight_files, config);
    if (!checked.ok() && files.layout == FolderLayout::kGguf) return checked;
    if (!checked.ok()) weight_files = checked;
  }
  KvFormat format;
  TM_ASSIGN_OR_RETURN(format.element, KvElementOf(kv, config.head_dim));
  format.kv_heads = config.kv_heads;
  format.head_dim = config.head_dim;
  format.page_size = kv.page_size;
  format.order = kv.order;
  return OpenedModel{.folder = files,
                     .config = config,
                     .kv_layout = MakeKvLayout(config.window, format),
                     .weights = std::move(weights),
                     .weight_files = std::move(weight_files),
                     .file_names = std::move(file_names)};
}

std::string SampleOfWeights(const OpenedModel& model) {
  constexpr int64_t kPlaces = 4, kPlaceBytes = 64;
  constexpr size_t kMostBytes = size_t{256} << 10;
  if (!model.weight_files.ok()) return "";
  const ModelConfig& config = model.config;
  std::string names, bytes;
  const auto add_number = [&](double number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  for (const double f : RotaryFrequencies(config.rope_theta, config.head_dim, config.rope_scaling))
    add_number(f);
  add_number(config.rope_scaling.magnitude);
  add_number(config.rms_epsilon);
  add_number(static_cast<double>(config.rotary_style));
  add_number(config.experts_per_token);
  add_number(config.query_scaling.beta);
  add_number(config.query_scaling.positions);
  for (const auto& [name, found] : model.weight_files->all()) {
    const TensorInfo& tensor = *found.tensor;
    names += name + " " + tensor.dtype_name + " " + ShapeText(tensor.shape) + "\n";
    const int64_t size = tensor.end - tensor.begin;
    const int64_t piece = std::min(size, kPlaceBytes);
    for (int64_t place = 0; place < kPlaces && bytes.size() < kMostBytes; ++place) {
      const int64_t at = (size - piece) * place / (kPlaces - 1);
      bytes.append(reinterpret_cast<const char*>(found.data()) + at, static_cast<size_t>(piece));
    }
  }
  return names + bytes;
}

}  // namespace tramontane
