#include "models/opened_model.h"

#include <utility>

#include "models/files/built_in_files.h"

namespace tramontane {

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
  format.element = kv.format;
  format.kv_heads = config.kv_heads;
  format.head_dim = config.head_dim;
  format.page_size = kv.page_size;
  return OpenedModel{.folder = files,
                     .config = config,
                     .kv_layout = MakeKvLayout(config.window, format),
                     .weights = std::move(weights),
                     .weight_files = std::move(weight_files),
                     .file_names = std::move(file_names)};
}

}  // namespace tramontane
