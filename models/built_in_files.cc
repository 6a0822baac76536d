#include "models/built_in_files.h"

#include <map>
#include <utility>

namespace tramontane {
namespace {

using Folders = std::map<std::string, std::vector<BuiltInFile>, std::less<>>;

Folders& AllFolders() {
  static auto* folders = new Folders;
  return *folders;
}

}  // namespace

void AddBuiltInFolder(const std::string& folder, std::vector<BuiltInFile> files) {
  AllFolders()[folder] = std::move(files);
}

const std::vector<BuiltInFile>* FindBuiltInFolder(std::string_view folder) {
  const auto found = AllFolders().find(folder);
  return found == AllFolders().end() ? nullptr : &found->second;
}

const BuiltInFile* FindBuiltInFile(std::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return nullptr;
  const std::vector<BuiltInFile>* files = FindBuiltInFolder(path.substr(0, slash));
  if (files == nullptr) return nullptr;
  for (const BuiltInFile& file : *files) {
    if (file.name == path.substr(slash + 1)) return &file;
  }
  return nullptr;
}

}  // namespace tramontane
