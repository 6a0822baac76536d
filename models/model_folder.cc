#include "models/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "models/files/built_in_files.h"
#include "models/files/read_file.h"
#include "models/json_file.h"

namespace tramontane {
namespace {

constexpr int64_t kMaxIndexBytes = 64 << 20;

struct LayoutFiles {
  FolderLayout layout;
  const char* config;
  const char* weights_prefix;
  const char* single_weights;
  const char* index;
};

constexpr LayoutFiles kHuggingFaceFiles = {FolderLayout::kHuggingFace, "config.json", "model",
                                           "model.safetensors", "model.safetensors.index.json"};
constexpr LayoutFiles kMistralFiles = {FolderLayout::kMistral, "params.json", "consolidated",
                                       "consolidated.safetensors", "consolidated.safetensors.index.json"};

std::vector<std::string> WeightFiles(const std::set<std::string>& names, const LayoutFiles& files) {
  if (names.count(files.single_weights) != 0) return {files.single_weights};
  std::vector<std::string> found;
  for (const std::string& name : names) {
    if (name.starts_with(files.weights_prefix) && name.ends_with(".safetensors")) found.push_back(name);
  }
  return found;
}

StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  TM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxIndexBytes));
  TM_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJsonObject(text, path));
  const auto weight_map = json.find("weight_map");
  if (weight_map == json.end() || !weight_map->is_object() || weight_map->empty()) {
    return InvalidArgument(path + ": weight_map is missing or not an object with entries");
  }
  std::map<std::string, std::string> index;
  for (const auto& [tensor, file] : weight_map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    // A plain name within the folder: an index never leads out of it.
    if (!name.ends_with(".safetensors") || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      return InvalidArgument(path + ": weight_map of " + JsonText(tensor) + " is " + JsonText(file) +
                             "; it must name a .safetensors file of the same folder");
    }
    index[tensor] = name;
  }
  return index;
}

}  // namespace

StatusOr<ModelFolder> FindModelFiles(const std::string& folder) {
  TM_ASSIGN_OR_RETURN(const std::vector<std::string> in_folder, NamesInFolder(folder));
  const std::set<std::string> names(in_folder.begin(), in_folder.end());
  const auto has_weights = [&](const LayoutFiles& files) {
    return names.count(files.config) != 0 && !WeightFiles(names, files).empty();
  };
  const LayoutFiles* files = nullptr;
  if (has_weights(kHuggingFaceFiles)) {
    files = &kHuggingFaceFiles;
  } else if (has_weights(kMistralFiles)) {
    files = &kMistralFiles;
  } else if (names.count(kHuggingFaceFiles.config) != 0) {
    files = &kHuggingFaceFiles;
  } else if (names.count(kMistralFiles.config) != 0) {
    files = &kMistralFiles;
  } else {
    return NotFound(folder + ": neither config.json nor params.json is there");
  }

  ModelFolder found;
  found.path = folder;
  while (found.path.size() > 1 && found.path.back() == '/') found.path.pop_back();
  found.layout = files->layout;
  found.config_file = files->config;
  found.weight_files = WeightFiles(names, *files);
  if (names.count(files->single_weights) == 0 && names.count(files->index) != 0) {
    TM_ASSIGN_OR_RETURN(found.index, ReadIndex(found.PathOf(files->index)));
    std::set<std::string> shards;
    for (const auto& [tensor, file] : found.index) shards.insert(file);
    found.weight_files.assign(shards.begin(), shards.end());
  }
  if (found.weight_files.empty()) {
    for (const std::string& name : names) {
      const std::string suffix = std::filesystem::path(name).extension().string();
      if (suffix == ".bin" || suffix == ".pth" || suffix == ".pt" || suffix == ".gguf") {
        found.unreadable_weights.push_back(name);
      }
    }
  }
  return found;
}

}  // namespace tramontane
