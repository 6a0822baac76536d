// Which files of a folder are the model: one explicit rule, used for the config and for the weights.
//
//   1. config.json and model*.safetensors           -> Hugging Face layout
//   2. params.json and consolidated*.safetensors    -> Mistral's own layout
//   3. no such weights: config.json -> Hugging Face, else params.json -> Mistral's own (enough for `inspect`)
//
// Many released folders hold both layouts; then the first rule takes the Hugging Face one, and the other
// files are not looked at. Within a layout: the single file (model.safetensors, consolidated.safetensors) if
// it is there, else the files that the index names (model.safetensors.index.json), else all files of the
// pattern.
//
// Any thread; a plain value.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "models/model_config.h"

namespace tramontane {

struct ModelFolder {
  std::string path;
  FolderLayout layout = FolderLayout::kHuggingFace;
  std::string config_file;                      // "config.json" or "params.json", within path
  std::vector<std::string> weight_files;        // within path, sorted; empty: the weights are absent
  std::map<std::string, std::string> index;     // tensor -> weight file; empty: there is no index
  std::vector<std::string> unreadable_weights;  // *.pth, *.bin, *.gguf ...: why the weights may seem absent

  std::string PathOf(const std::string& file) const { return path + "/" + file; }
};

// Looks at names only; reads nothing but an index.
StatusOr<ModelFolder> FindModelFiles(const std::string& folder);

}  // namespace tramontane
