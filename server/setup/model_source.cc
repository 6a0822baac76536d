#include "server/setup/model_source.h"

#include <filesystem>

#include "server/setup/embedded_model.h"

namespace tramontane {

namespace fs = std::filesystem;

StatusOr<ModelSource> FindModel(const std::string& argument) {
  if (argument.empty()) return ModelSource{kEmbeddedModelFolder, kEmbeddedModelName};
  std::error_code error;
  const fs::path path(argument);
  const bool is_file = fs::is_regular_file(path, error);
  if (!is_file && !fs::is_directory(path, error)) {
    return NotFound(
        "model is \"" + argument + "\": " +
        (fs::exists(path, error) ? "neither a folder nor a file" : "there is no such folder or file"));
  }
  if (is_file)
    return ModelSource{argument, (path.extension() == ".gguf" ? path.stem() : path.filename()).string()};
  const fs::path whole = fs::canonical(path, error);
  return ModelSource{argument, error ? argument : whole.filename().string()};
}

}  // namespace tramontane
