// Which folder a model argument means, and what the model is called.
// Main thread; reads the file system.
#pragma once

#include <string>

#include "kernels/core/status.h"

namespace tramontane {

struct ModelSource {
  std::string folder;
  std::string name;  // "breeze" for the embedded model, else the folder's base name
};

// argument "": the embedded model. A folder that is not there is NOT_FOUND.
StatusOr<ModelSource> FindModel(const std::string& argument);

}  // namespace tramontane
