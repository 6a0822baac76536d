// Which files are the model: one explicit rule, used for the config, the weights and the tokenizer.
//
// A folder may hold several sets, and is read by one of them, never by a mix:
//   Mistral's own: params.json and consolidated*.safetensors
//   Hugging Face:  config.json and model*.safetensors
//   GGUF:          one *.gguf, or parts named *-00001-of-0000N.gguf; everything stands in them
// and generation_config.json goes with either of the first two.
// By itself the rule takes Mistral's own set where it is whole: its config can be read, every tensor that
// this asks for is in its files, and a tokenizer is there. Else it takes the set that has weights, Hugging
// Face's first; without any of these the GGUF file, where there is just one (projectors of images, *mmproj*,
// do not count); without any weights config.json, else params.json, which is enough for `inspect`. Within a
// set: the files that the index names (model.safetensors.index.json), if they are there, else the single file
// (model.safetensors, consolidated.safetensors), else all files of the pattern.
// A path that is a file is a GGUF file, whatever its name.
//
// Any thread; a plain value.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "models/model_config.h"

namespace tramontane {

enum class ModelFormat { kAuto, kNative, kHuggingFace, kGguf };

// What a user may say of a model's files.
struct FileChoice {
  ModelFormat format = ModelFormat::kAuto;
  std::string tokenizer;  // its file, or a folder with it; "": the model's folder, or its GGUF file
};

struct ModelFolder {
  std::string path;       // the folder; of a GGUF file, the one that it lies in
  std::string why;        // why this set of files, for people
  std::string tokenizer;  // where LoadTokenizer looks
  FolderLayout layout = FolderLayout::kHuggingFace;
  std::string config_file;                      // "config.json", "params.json" or a GGUF file, within path
  std::vector<std::string> weight_files;        // within path, sorted; empty: the weights are absent
  std::map<std::string, std::string> index;     // tensor -> weight file; empty: there is no index
  std::vector<std::string> unreadable_weights;  // *.pth, *.bin, *.pt ...: why the weights may seem absent
  std::vector<std::string> warnings;            // weights that are left aside, and why; a sentence each

  std::string PathOf(const std::string& file) const { return path + "/" + file; }
};

// Looks at names and an index; where both sets have weights, also at the config and the tensors of Mistral's
// own.
StatusOr<ModelFolder> FindModelFiles(const std::string& path, const FileChoice& choice = {});

}  // namespace tramontane
