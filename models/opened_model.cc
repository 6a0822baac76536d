#include "models/opened_model.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/core/kv_quantize.h"
#include "models/files/built_in_files.h"

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

}  // namespace tramontane
