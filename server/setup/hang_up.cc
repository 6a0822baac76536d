#include "server/setup/hang_up.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace tramontane {
namespace {

int hang_up_pipe[2] = {-1, -1};  // a signal writes a byte

extern "C" void OnHangUpSignal(int /*signal*/) {
  const int before = errno;
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = write(hang_up_pipe[1], &byte, 1);
  errno = before;
}

}  // namespace

Status ReloadOnHangUp() {
  if (hang_up_pipe[0] < 0 && pipe2(hang_up_pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
    return ResourceExhausted(std::string("no pipe for SIGHUP: ") + std::strerror(errno));
  }
  struct sigaction current = {};
  if (sigaction(SIGHUP, nullptr, &current) == 0 && current.sa_handler == SIG_IGN) return {};
  struct sigaction action = {};
  action.sa_handler = OnHangUpSignal;
  action.sa_flags = SA_RESTART;
  if (sigaction(SIGHUP, &action, nullptr) != 0) {
    return Internal(std::string("no handler for SIGHUP: ") + std::strerror(errno));
  }
  return {};
}

int HangUpFile() { return hang_up_pipe[0]; }

void TakeHangUps() {
  char bytes[64];
  while (read(hang_up_pipe[0], bytes, sizeof bytes) > 0) {
  }
}

}  // namespace tramontane
