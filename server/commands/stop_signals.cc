#include "server/commands/stop_signals.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

namespace tramontane {
namespace {

int stop_pipe[2] = {-1, -1};  // a signal writes a byte; the main thread waits for it

extern "C" void OnStopSignal(int) {
  static volatile sig_atomic_t received = 0;
  if (received != 0) _exit(1);  // the second one does not wait for anybody
  received = 1;
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = write(stop_pipe[1], &byte, 1);
}

}  // namespace

bool InstallStopSignals() {
  if (pipe2(stop_pipe, O_CLOEXEC) != 0) return false;
  struct sigaction action = {};
  action.sa_handler = OnStopSignal;
  signal(SIGPIPE, SIG_IGN);
  return sigaction(SIGTERM, &action, nullptr) == 0 && sigaction(SIGINT, &action, nullptr) == 0;
}

bool StopRequested(int timeout_ms) {
  pollfd descriptor = {stop_pipe[0], POLLIN, 0};
  return poll(&descriptor, 1, timeout_ms) > 0;
}

}  // namespace tramontane
