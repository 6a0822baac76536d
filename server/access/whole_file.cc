#include "server/access/whole_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "server/base/file_descriptor.h"

namespace tramontane {
namespace {

constexpr std::chrono::milliseconds kMostWait{1000};  // of a pipe, for whoever writes it

Status NotReadable() { return NotFound(std::string("cannot be read: ") + std::strerror(errno)); }

Status TooLong(int64_t bytes, int64_t most_bytes) {
  return InvalidArgument("has " + std::to_string(bytes) + " bytes or more; the most is " +
                         std::to_string(most_bytes));
}

}  // namespace

// What stands there may have been replaced by anything: a pipe that nobody writes, a device without end.
StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t most_bytes) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat kind{};
  if (file.get() < 0 || fstat(file.get(), &kind) != 0) return NotReadable();
  if (S_ISREG(kind.st_mode) && kind.st_size > most_bytes) return TooLong(kind.st_size, most_bytes);
  const auto end = std::chrono::steady_clock::now() + kMostWait;
  std::string content;
  std::array<char, 16 << 10> piece{};
  while (true) {
    const ssize_t count = read(file.get(), piece.data(), piece.size());
    if (count == 0) return content;
    if (count > 0) {
      content.append(piece.data(), static_cast<size_t>(count));
      if (std::ssize(content) > most_bytes) return TooLong(std::ssize(content), most_bytes);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return NotReadable();
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd writer = {.fd = file.get(), .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || poll(&writer, 1, static_cast<int>(left.count())) == 0) {
      return NotFound("cannot be read: it is a pipe, and nobody has written to its end in time");
    }
  }
}

bool OthersCanRead(const std::string& path) {
  struct stat file{};
  return stat(path.c_str(), &file) == 0 && (file.st_mode & (S_IRGRP | S_IROTH)) != 0;
}

}  // namespace tramontane
