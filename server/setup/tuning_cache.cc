#include "server/setup/tuning_cache.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

namespace tramontane {
namespace {

constexpr std::string_view kFirstLine = "tramontane tuning 1\n";

// "" where there is no file.
StatusOr<std::string> ReadTuning(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::string();
  if (!std::filesystem::is_regular_file(path, error)) {
    return InvalidArgument("tuning_cache is " + path + ", which is no file");
  }
  std::string text(static_cast<size_t>(kMaxTuningBytes) + 1, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return InvalidArgument("tuning_cache is " + path + ", which cannot be read: " + std::strerror(errno));
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (static_cast<int64_t>(text.size()) > kMaxTuningBytes) {
    return InvalidArgument("tuning_cache is " + path + ", which has more than " +
                           std::to_string(kMaxTuningBytes) + " bytes");
  }
  return text;
}

}  // namespace

StatusOr<bool> UseTuningCache(const std::string& path, Backend& backend) {
  if (backend.UseTuning("") == OpCode::kUnsupported) return false;
  TM_ASSIGN_OR_RETURN(const std::string text, ReadTuning(path));
  if (text.empty()) return true;
  if (!text.starts_with(kFirstLine) || text.find('\0') != std::string::npos ||
      backend.UseTuning(text.c_str() + kFirstLine.size()) != OpCode::kOk) {
    return InvalidArgument(
        "tuning_cache is " + path +
        ", which is no such file: it begins with \"tramontane tuning 1\", and each line names a "
        "kernel");
  }
  return true;
}

StatusOr<int64_t> WriteTuningCache(const std::string& path, Backend& backend) {
  const std::string choices = backend.Tuning(), text = std::string(kFirstLine) + choices;
  const int64_t count = std::count(choices.begin(), choices.end(), '\n');
  TM_ASSIGN_OR_RETURN(const std::string before, ReadTuning(path));
  if (text == before) return count;
  const std::string aside = path + "." + std::to_string(getpid()) + ".tmp";
  std::ofstream file(aside, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  std::error_code error;
  if (file.good()) {
    std::filesystem::rename(aside, path, error);
    if (!error) return count;
  }
  const std::string reason = error ? error.message() : std::strerror(errno);
  std::filesystem::remove(aside, error);
  return Unavailable("tuning_cache is " + path + ", which cannot be written: " + reason);
}

}  // namespace tramontane
