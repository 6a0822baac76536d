#include "server/setup/model_source.h"

#include <filesystem>

#include "server/setup/embedded_model.h"

namespace tramontane {

namespace fs = std::filesystem;

StatusOr<ModelSource> FindModel(const std::string& argument) {
  if (argument.empty()) return ModelSource{kEmbeddedModelFolder, kEmbeddedModelName};
  std::error_code error;
  const fs::path folder(argument);
  if (!fs::is_directory(folder, error)) {
    return NotFound("model is \"" + argument +
                    "\": " + (fs::exists(folder, error) ? "not a folder" : "there is no such folder"));
  }
  const fs::path whole = fs::canonical(folder, error);
  return ModelSource{argument, error ? argument : whole.filename().string()};
}

}  // namespace tramontane
