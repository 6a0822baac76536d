#include "server/model_source.h"

#include <filesystem>

namespace tramontane {

namespace fs = std::filesystem;

StatusOr<ModelSource> FindModel(const std::string& argument) {
  std::error_code error;
  if (!argument.empty()) {
    const fs::path folder(argument);
    if (!fs::is_directory(folder, error)) {
      return NotFound("model is \"" + argument +
                      "\": " + (fs::exists(folder, error) ? "not a folder" : "there is no such folder"));
    }
    const fs::path whole = fs::canonical(folder, error);
    return ModelSource{argument, error ? argument : whole.filename().string()};
  }
  const fs::path program = fs::canonical("/proc/self/exe", error);
  if (error) return NotFound("the embedded model: /proc/self/exe cannot be read: " + error.message());
  const fs::path installed = program.parent_path() / "../share/tramontane/breeze";
  const fs::path checkout = program.parent_path() / "../../../models/breeze/weights";  // build/release/bin
  for (const fs::path& folder : {installed, checkout}) {
    if (fs::exists(folder / "config.json", error)) {
      return ModelSource{fs::canonical(folder, error).string(), "breeze"};
    }
  }
  return NotFound("the embedded model is neither in " + installed.lexically_normal().string() + " nor in " +
                  checkout.lexically_normal().string());
}

}  // namespace tramontane
