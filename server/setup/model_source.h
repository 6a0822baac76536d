// Which folder or file a model argument means, and what the model is called.
// Main thread; reads the file system.
#pragma once

#include <string>

#include "kernels/core/status.h"

namespace tramontane {

struct ModelSource {
  std::string folder;  // or a GGUF file
  std::string name;    // "breeze" for the embedded model, else the base name, without .gguf
};

// argument "": the embedded model. What is not there is NOT_FOUND.
StatusOr<ModelSource> FindModel(const std::string& argument);

}  // namespace tramontane
