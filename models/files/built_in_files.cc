#include "models/files/built_in_files.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
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

bool FileExists(const std::string& path) {
  std::error_code error;
  return FindBuiltInFile(path) != nullptr || std::filesystem::exists(path, error);
}

StatusOr<std::vector<std::string>> NamesInFolder(const std::string& folder) {
  std::vector<std::string> names;
  if (const std::vector<BuiltInFile>* files = FindBuiltInFolder(folder)) {
    for (const BuiltInFile& file : *files) names.push_back(file.name);
  } else {
    namespace fs = std::filesystem;
    std::error_code error;
    if (!fs::is_directory(folder, error)) return NotFound(folder + ": there is no such model folder");
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    if (error) return FailedPrecondition(folder + ": cannot be listed: " + error.message());
  }
  std::sort(names.begin(), names.end());  // a folder has no order of its own
  return names;
}

}  // namespace tramontane
