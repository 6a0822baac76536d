// What the files of a model hold beside its weights: refused where leaving it out would change what is
// computed, unless its values are looked at and change nothing.
//
// Loading thread; pure but for pages of the files that are looked at.
#pragma once

#include <map>
#include <set>
#include <string>

#include "kernels/core/status.h"
#include "models/files/tensor_file.h"
#include "models/model_config.h"

namespace tramontane {

// Of tensors, in the layout of the files.
struct LeftOverNames {
  std::string layers;    // that those of layers begin with
  std::string head;      // of the output matrix
  std::string divisors;  // of a GGUF file's rotary frequencies
};

// UNIMPLEMENTED names the first tensor that is none of `used`, stands in a layer that runs or beside one that
// is used (of a GGUF file: anywhere), and may change the computation. Without effect are zeros that would be
// added or subtracted, and scales by which activations, queries, keys and values would be rounded; these and
// all others are warnings in the config.
Status CheckLeftOver(const std::map<std::string, FoundTensor>& all, const std::set<std::string>& used,
                     const LeftOverNames& names, ModelConfig& config);

}  // namespace tramontane
