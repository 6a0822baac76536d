// OpenedModel: what a folder says of its model, read once. The planner, the loader and the engine are handed
// this one value, so none of them can take the model for another one, whatever happens to the folder
// meanwhile.
//
// Loading thread; a value that is moved. It keeps the weight files mapped, their headers checked, until it is
// loaded or let go. Always: kv_layout and weights follow from config.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "models/kv_layout.h"
#include "models/model_config.h"
#include "models/model_folder.h"
#include "models/weights.h"

namespace tramontane {

// How keys and values are to be kept: what a user may choose. The rest of a KvFormat is the model's.
struct KvOptions {
  Format format = DType::kBf16;
  int32_t page_size = 16;  // tokens, 1 to kMaxPageSize
};

struct OpenedModel {
  ModelFolder folder;
  ModelConfig config;
  KvLayout kv_layout;
  std::vector<WeightSpec> weights;      // all that the model needs, in the order in which it is loaded
  StatusOr<WeightFiles> weight_files;   // or why they cannot be used: NotFound where there are none
  std::vector<std::string> file_names;  // all of the folder, sorted
};

// Errors of the folder and its config name the file and the key. What is wrong with the weight files is told
// when they are asked for, since a plan can be made without any; of a GGUF file, which is whole or nothing,
// at once.
StatusOr<OpenedModel> OpenModel(const std::string& path, const KvOptions& kv, const FileChoice& choice = {});

}  // namespace tramontane
