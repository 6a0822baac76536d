#include "server/commands/stop_signals.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

namespace tramontane {
namespace {

int stop_pipe[2] = {-1, -1};  // a signal writes a byte; the main thread waits for it

extern "C" void OnStopSignal(int signal) {
  static volatile sig_atomic_t received = 0;
  if (received != 0 && signal == SIGHUP) return;
  if (received != 0) _exit(1);  // the second one does not wait for anybody
  received = 1;
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = write(stop_pipe[1], &byte, 1);
}

bool IsIgnored(int signal) {
  struct sigaction current = {};
  return sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN;
}

}  // namespace

Status InstallStopSignals() {
  if (pipe2(stop_pipe, O_CLOEXEC) != 0) {
    return ResourceExhausted(std::string("no pipe for the stop signals: ") + std::strerror(errno));
  }
  struct sigaction action = {};
  action.sa_handler = OnStopSignal;
  signal(SIGPIPE, SIG_IGN);
  for (const int stop : {SIGTERM, SIGINT, SIGHUP}) {
    if (stop == SIGHUP && IsIgnored(SIGHUP)) continue;
    if (sigaction(stop, &action, nullptr) != 0) {
      return Internal(std::string("no handler for a stop signal: ") + std::strerror(errno));
    }
  }
  return {};
}

bool StopRequested(int timeout_ms) {
  pollfd descriptor = {stop_pipe[0], POLLIN, 0};
  return poll(&descriptor, 1, timeout_ms) > 0;
}

void WaitForBalancers(double delay, const std::function<void()>& tell, const std::function<bool()>& is_over) {
  if (delay <= 0) return;
  constexpr std::chrono::milliseconds kLook(200);
  using Clock = std::chrono::steady_clock;
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(delay));
  spdlog::info("stopping: requests are taken for {} s more, and /ready says that the server goes", delay);
  tell();
  for (auto now = Clock::now(); now < end && !is_over(); now = Clock::now()) {
    std::this_thread::sleep_for(std::min<Clock::duration>(kLook, end - now));
  }
}

}  // namespace tramontane
