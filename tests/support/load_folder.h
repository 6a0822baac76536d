// A model folder opened and loaded in one, for those who need no plan. Loading thread.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "models/decoder.h"

namespace tramontane {

struct LoadOptions {
  KvOptions kv;
  LoadProgress progress = nullptr;
};

inline StatusOr<std::unique_ptr<Model>> LoadFolder(const std::string& folder, Backend& backend,
                                                   const LoadOptions& options) {
  TM_ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(folder, options.kv));
  return LoadModel(std::move(opened), backend, options.progress);
}

}  // namespace tramontane
