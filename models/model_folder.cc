#include "models/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "models/files/built_in_files.h"
#include "models/files/read_file.h"
#include "models/gguf/gguf_file.h"
#include "models/json_file.h"
#include "models/weights.h"

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

// All files of the pattern.
std::vector<std::string> WeightFilesIn(const std::set<std::string>& names, const LayoutFiles& files) {
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

using Names = std::set<std::string>;

bool HasConfig(const Names& names, const LayoutFiles& files) { return names.count(files.config) != 0; }
bool HasBoth(const Names& names, const LayoutFiles& files) {
  return HasConfig(names, files) && !WeightFilesIn(names, files).empty();
}

// Pickles, and what else might be taken for the weights of this layout.
std::vector<std::string> UnreadableWeights(const Names& names, FolderLayout layout) {
  const std::set<std::string> suffixes = {".bin", ".pth", ".pt", ".ckpt", ".pkl", ".pickle"};
  std::vector<std::string> found;
  for (const std::string& name : names) {
    const bool of_mistral = name.starts_with(kMistralFiles.weights_prefix);
    if (of_mistral && layout == FolderLayout::kHuggingFace) continue;
    if (suffixes.count(std::filesystem::path(name).extension().string()) != 0) found.push_back(name);
  }
  return found;
}

// The files that the index names; the single file, where there is none or it names what is not there; else
// all of the pattern.
Status ChooseWeightFiles(const Names& names, const LayoutFiles& files, ModelFolder& found) {
  const std::vector<std::string> all = WeightFilesIn(names, files);
  const bool has_single = names.count(files.single_weights) != 0;
  found.weight_files = has_single ? std::vector<std::string>{files.single_weights} : all;
  if (names.count(files.index) != 0) {
    auto index = ReadIndex(found.PathOf(files.index));
    if (!index.ok() && !has_single) return index.status();
    std::string fault = index.status().message();
    Names shards;
    for (const auto& [tensor, file] : index.ok() ? *index : found.index) shards.insert(file);
    for (const std::string& shard : shards) {
      if (names.count(shard) == 0)
        fault = found.PathOf(files.index) + " names " + shard + ", which is not there";
    }
    if (fault.empty() || !has_single) {
      found.index = *std::move(index);
      found.weight_files.assign(shards.begin(), shards.end());
    } else {
      found.warnings.push_back(fault + ": the index is left aside");
    }
  }
  Names left(all.begin(), all.end());
  for (const std::string& used : found.weight_files) left.erase(used);
  if (left.empty()) return {};
  found.warnings.push_back(
      found.PathOf(*left.begin()) +
      (left.size() == 1 ? " is" : " and " + std::to_string(left.size() - 1) + " more are") +
      " left aside: the weights are in " +
      (found.index.empty() ? std::string(files.single_weights)
                           : std::string("what ") + files.index + " names"));
  return {};
}

StatusOr<ModelFolder> FilesOf(const std::string& folder, const Names& names, const LayoutFiles& files,
                              const FileChoice& choice) {
  ModelFolder found;
  found.path = folder;
  while (found.path.size() > 1 && found.path.back() == '/') found.path.pop_back();
  found.tokenizer = choice.tokenizer.empty() ? found.path : choice.tokenizer;
  found.layout = files.layout;
  found.config_file = files.config;
  TM_RETURN_IF_ERROR(ChooseWeightFiles(names, files, found));
  if (found.weight_files.empty()) found.unreadable_weights = UnreadableWeights(names, files.layout);
  return found;
}

bool IsTokenizer(const std::string& name) {
  return name == "tekken.json" || name.starts_with("tokenizer.model");
}

// OK where nothing of the set is missing; else what.
Status CheckWhole(const StatusOr<ModelFolder>& found, const Names& names, const FileChoice& choice) {
  TM_RETURN_IF_ERROR(found.status());
  TM_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(*found));
  TM_ASSIGN_OR_RETURN(const WeightFiles files, WeightFiles::Open(*found, config.quantization));
  TM_RETURN_IF_ERROR(AdoptTensors(files, config));
  for (const WeightSpec& spec : ListWeights(config)) {
    for (const TensorSpec& part : spec.parts) TM_RETURN_IF_ERROR(files.Find(part).status());
  }
  if (choice.tokenizer.empty() && std::none_of(names.begin(), names.end(), IsTokenizer)) {
    return NotFound(found->path + ": neither tekken.json nor tokenizer.model is there");
  }
  return {};
}

StatusOr<ModelFolder> ChosenFiles(const std::string& folder, const Names& names, const LayoutFiles& files,
                                  const FileChoice& choice, const char* format) {
  const std::string chosen = std::string("model_format is ") + format;
  if (!HasConfig(names, files))
    return NotFound(folder + ": " + chosen + ", but " + files.config + " is not there");
  TM_ASSIGN_OR_RETURN(ModelFolder found, FilesOf(folder, names, files, choice));
  found.why = chosen;
  return found;
}

std::string WhyNotTheOther(const Names& names, const LayoutFiles& other) {
  const std::string config = other.config;
  if (!HasConfig(names, other)) return config + " is not there";
  const std::string why = config + " is there too, but no " + other.weights_prefix + "*.safetensors";
  const std::vector<std::string> unreadable = UnreadableWeights(names, other.layout);
  return unreadable.empty() ? why : why + "; " + unreadable[0] + " cannot be read";
}

// Both sets have weights.
StatusOr<ModelFolder> BetterFiles(const std::string& folder, const Names& names, const FileChoice& choice) {
  StatusOr<ModelFolder> native = FilesOf(folder, names, kMistralFiles, choice);
  const Status whole = CheckWhole(native, names, choice);
  if (whole.ok()) {
    native->why = "config.json is there too, but this set is whole and comes first";
    return native;
  }
  TM_ASSIGN_OR_RETURN(ModelFolder found, FilesOf(folder, names, kHuggingFaceFiles, choice));
  found.why = "params.json is there too, but its set is not usable: " + whole.message();
  return found;
}

// `path` is a file, the first of its parts.
ModelFolder GgufModel(const std::string& path, const FileChoice& choice, std::string why) {
  const std::filesystem::path file(path);
  ModelFolder found;
  found.path = file.has_parent_path() ? file.parent_path().string() : ".";
  found.why = std::move(why);
  found.layout = FolderLayout::kGguf;
  found.config_file = file.filename().string();
  found.tokenizer = choice.tokenizer.empty() ? path : choice.tokenizer;
  found.weight_files = GgufPartNames(found.config_file);
  // Another part than the first: whoever opens it says so.
  if (found.weight_files.empty()) found.weight_files = {found.config_file};
  return found;
}

// The models of a folder that are GGUF files, each by its first part.
std::set<std::string> GgufModelsIn(const Names& names) {
  std::set<std::string> models;
  for (const std::string& name : names) {
    const bool projects_images = name.find("mmproj") != std::string::npos;
    if (IsGgufName(name) && !projects_images) models.insert(FirstGgufPart(name));
  }
  return models;
}

StatusOr<ModelFolder> GgufIn(const std::string& folder, const Names& names, const FileChoice& choice,
                             const std::string& why) {
  const std::set<std::string> models = GgufModelsIn(names);
  if (models.empty()) return NotFound(folder + ": " + why + ", but no *.gguf is there");
  if (models.size() > 1) {
    return InvalidArgument(folder + ": " + std::to_string(models.size()) + " GGUF files are there, " +
                           *models.begin() + " and " + *std::next(models.begin()) +
                           (models.size() > 2 ? " among them" : "") + "; name the one");
  }
  return GgufModel((std::filesystem::path(folder) / *models.begin()).string(), choice, why);
}

}  // namespace

StatusOr<ModelFolder> FindModelFiles(const std::string& path, const FileChoice& choice) {
  std::error_code error;
  const bool by_file = std::filesystem::is_regular_file(path, error);
  const bool any = choice.format == ModelFormat::kAuto;
  if (by_file && (any || choice.format == ModelFormat::kGguf)) {
    return GgufModel(path, choice, any ? "it is a file" : "model_format is gguf");
  }
  TM_ASSIGN_OR_RETURN(const std::vector<std::string> in_folder, NamesInFolder(path));
  const Names names(in_folder.begin(), in_folder.end());
  if (choice.format == ModelFormat::kNative) return ChosenFiles(path, names, kMistralFiles, choice, "native");
  if (choice.format == ModelFormat::kHuggingFace) {
    return ChosenFiles(path, names, kHuggingFaceFiles, choice, "hf");
  }
  if (choice.format == ModelFormat::kGguf) return GgufIn(path, names, choice, "model_format is gguf");
  const bool native_weights = HasBoth(names, kMistralFiles), others = HasBoth(names, kHuggingFaceFiles);
  if (native_weights && others) return BetterFiles(path, names, choice);
  if (!native_weights && !others && !GgufModelsIn(names).empty()) {
    return GgufIn(path, names, choice, "no other weights are there");
  }
  const bool native = native_weights || (!others && !HasConfig(names, kHuggingFaceFiles));
  const LayoutFiles& files = native ? kMistralFiles : kHuggingFaceFiles;
  const LayoutFiles& other = native ? kHuggingFaceFiles : kMistralFiles;
  if (!HasConfig(names, files)) {
    return NotFound(path + ": neither config.json nor params.json nor a *.gguf is there");
  }
  TM_ASSIGN_OR_RETURN(ModelFolder found, FilesOf(path, names, files, choice));
  found.why = WhyNotTheOther(names, other);
  return found;
}

}  // namespace tramontane
