// Folders that are part of the program: files by name, their bytes in its read-only data. Whoever reads the
// files of a model looks here first; "built-in:breeze" is a folder like any other to all that is above.
//
// AddBuiltInFolder: main thread, before anything is read; the rest from any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"

namespace tramontane {

struct BuiltInFile {
  std::string name;
  std::string_view bytes;  // as long as the process
};

void AddBuiltInFolder(const std::string& folder, std::vector<BuiltInFile> files);

// Null where there is none of that path.
const std::vector<BuiltInFile>* FindBuiltInFolder(std::string_view folder);
const BuiltInFile* FindBuiltInFile(std::string_view path);  // "built-in:breeze/config.json"

// Built in or on disk.
bool FileExists(const std::string& path);
StatusOr<std::vector<std::string>> NamesInFolder(const std::string& folder);  // sorted

}  // namespace tramontane
