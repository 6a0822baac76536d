#include "server/commands/start_guard.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <future>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "server/commands/stop_signals.h"
#include "server/setup/logging.h"

namespace tramontane {
namespace {

constexpr rlim_t kLeastOpenFiles = 32;

// Written beforehand: when it is wanted there may be no memory left to write it in.
std::array<char, 512> sentence;

std::string SoftLimit(decltype(RLIMIT_NOFILE) resource, rlim_t unit) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return std::to_string(limit.rlim_cur / unit);
}

void WriteSentence() {
  std::snprintf(
      sentence.data(), sentence.size(),
      "tramontane: could not start: the system gave no more threads, memory or files (open files, ulimit -n: "
      "%s; processes and threads, ulimit -u: %s; KiB of address space, ulimit -v: %s)\n",
      SoftLimit(RLIMIT_NOFILE, 1).c_str(), SoftLimit(RLIMIT_NPROC, 1).c_str(),
      SoftLimit(RLIMIT_AS, 1024).c_str());
}

// On the thread that gave up, which is in the midst of nothing of ours: the log may say more than the
// sentence can.
[[noreturn]] void EndWithSentence() {
  FlushLogs();
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, sentence.data(), std::strlen(sentence.data()));
  _exit(1);
}

extern "C" void OnAbort(int) { EndWithSentence(); }

// Nobody caught what was thrown.
[[noreturn]] void OnTerminate() {
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& fault) {
      std::fprintf(stderr, "tramontane: %s\n", fault.what());
    } catch (...) {
      std::fprintf(stderr, "tramontane: something was thrown that is no exception\n");
    }
  }
  EndWithSentence();
}

// Fewer than a server opens that answers nobody.
Status CheckOpenFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max >= kLeastOpenFiles) return {};
  return ResourceExhausted("the process may open " + std::to_string(limit.rlim_max) +
                           " files (ulimit -n), a server needs at least " + std::to_string(kLeastOpenFiles));
}

// As many at once as a server starts (20 on two cores), and some: where one of gRPC's own is refused, its end
// waits for that one for ever.
Status CheckThreadLimit() {
  const size_t wanted = 32 + size_t{2} * std::thread::hardware_concurrency();
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  std::vector<std::thread> threads;
  threads.reserve(wanted);
  Status status;
  try {
    while (threads.size() < wanted) threads.emplace_back([ended] { ended.wait(); });
  } catch (const std::system_error& error) {
    status = ResourceExhausted("the system gives " + std::to_string(threads.size()) +
                               " threads (ulimit -u, ulimit -v), a server starts up to " +
                               std::to_string(wanted) + ": " + error.what());
  }
  end.set_value();
  for (std::thread& thread : threads) thread.join();
  return status;
}

}  // namespace

StartGuard::StartGuard() {
  WriteSentence();
  struct sigaction action = {};
  action.sa_handler = OnAbort;
  sigaction(SIGABRT, &action, nullptr);
  terminate_before_ = std::set_terminate(OnTerminate);
}

StartGuard::~StartGuard() { Release(); }

void StartGuard::Release() {
  if (terminate_before_ == nullptr) return;
  signal(SIGABRT, SIG_DFL);
  std::set_terminate(terminate_before_);
  terminate_before_ = nullptr;
}

Status PrepareToServe(const std::string& log_level, const std::string& log_format) {
  TM_RETURN_IF_ERROR(CheckOpenFileLimit());
  TM_RETURN_IF_ERROR(CheckThreadLimit());
  TM_RETURN_IF_ERROR(SetUpLogging(log_level, log_format));
  return InstallStopSignals();
}

}  // namespace tramontane
