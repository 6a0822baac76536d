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
  DType dtype = DType::kBf16;  // kF32, kBf16, kF16, kFp8E4M3, kInt8 or kInt4
  // Numbers that have a scale in common, of kInt8 and kInt4: 8, 16, .. 128, dividing head_dim. 0: 32, or
  // head_dim where that is less; of the others always 0.
  int32_t group = 0;
  int32_t page_size = 16;         // tokens, 1 to kMaxPageSize
  KvOrder order = KvOrder::kHnd;  // of heads and tokens within a page
};

// How one key of head_dim numbers is stored.
StatusOr<Format> KvElementOf(const KvOptions& kv, int32_t head_dim);

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

// What keys and values of the model are known by: how it turns keys and scales queries, to how many experts
// it sends a token, and of its weights names, types and shapes of all tensors in the files, and 64 bytes from
// 4 places of each, of as many as make 256 KiB. "" where there are no files. Reads that much of them.
std::string SampleOfWeights(const OpenedModel& model);

}  // namespace tramontane
