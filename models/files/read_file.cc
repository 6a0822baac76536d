#include "models/files/read_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "models/files/built_in_files.h"

namespace tramontane {

StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  if (const BuiltInFile* file = FindBuiltInFile(path)) return std::string(file->bytes);
  std::error_code error;
  const auto kind = std::filesystem::status(path, error);
  if (error || !std::filesystem::exists(kind)) return NotFound(path + ": there is no such file");
  if (!std::filesystem::is_regular_file(kind)) return InvalidArgument(path + ": not a regular file");

  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return FailedPrecondition(path + ": cannot be read: " + error.message());
  if (bytes > static_cast<uintmax_t>(max_bytes)) {
    return InvalidArgument(path + ": " + std::to_string(bytes) + " bytes, the limit is " +
                           std::to_string(max_bytes));
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return FailedPrecondition(path + ": cannot be opened: " + std::strerror(errno));
  std::string text(bytes, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(bytes));
  if (static_cast<uintmax_t>(stream.gcount()) != bytes) return DataLoss(path + ": cannot be read to its end");
  return text;
}

}  // namespace tramontane
