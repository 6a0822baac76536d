#include "bench/load/report_files.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

namespace tramontane::load {
namespace {

namespace fs = std::filesystem;

fs::file_type TypeOf(const std::string& path) {
  std::error_code ignored;
  return fs::status(path, ignored).type();
}

}  // namespace

Status CheckReportFiles(const BenchOptions& options) {
  const std::array<std::pair<const char*, const std::string*>, 3> files = {
      {{"--json", &options.json_path}, {"--jsonl", &options.jsonl_path}, {"--html", &options.html_path}}};
  for (const auto& [flag, path] : files) {
    if (path->empty() || TypeOf(*path) == fs::file_type::fifo) continue;
    if (!std::ofstream(*path, std::ios::app)) return InvalidArgument(*path + " cannot be written");
  }
  for (size_t i = 0; i < files.size(); ++i) {
    for (size_t j = i + 1; j < files.size(); ++j) {
      const std::string &one = *files[i].second, &other = *files[j].second;
      std::error_code error;
      const bool is_device = TypeOf(one) == fs::file_type::character;
      if (one.empty() || other.empty() || is_device || !fs::equivalent(one, other, error)) continue;
      return InvalidArgument(std::string(files[j].first) + " is \"" + other + "\", which is the file of " +
                             files[i].first + " too; each needs one of its own");
    }
  }
  return Status::Ok();
}

}  // namespace tramontane::load
