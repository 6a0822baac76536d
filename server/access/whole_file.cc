#include "server/access/whole_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

namespace tramontane {

StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t most_bytes) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (file) text << file.rdbuf();  // which fails, too, where there is nothing to read
  if (!file || (text.fail() && errno != 0))
    return NotFound(std::string("cannot be read: ") + std::strerror(errno));
  std::string content = std::move(text).str();
  if (std::ssize(content) > most_bytes) {
    return InvalidArgument("has " + std::to_string(content.size()) + " bytes; the most is " +
                           std::to_string(most_bytes));
  }
  return content;
}

bool OthersCanRead(const std::string& path) {
  struct stat file{};
  return stat(path.c_str(), &file) == 0 && (file.st_mode & (S_IRGRP | S_IROTH)) != 0;
}

}  // namespace tramontane
