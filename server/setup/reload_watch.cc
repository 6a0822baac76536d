#include "server/setup/reload_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

#include "server/setup/hang_up.h"

namespace tramontane {
namespace {

constexpr int kLookMs = 1000;

std::mutex counts_mutex;  // guards the next one
std::vector<ReloadCount> counts;

void Count(const std::string& what, Reloaded outcome) {
  const std::lock_guard lock(counts_mutex);
  for (ReloadCount& count : counts) {
    if (count.what == what) ++(outcome == Reloaded::kTaken ? count.taken : count.failed);
  }
}

void LookAt(const Reloadable& file) {
  std::string fault;
  const Reloaded outcome = file.look_again(&fault);
  if (outcome == Reloaded::kUnchanged) return;
  Count(file.what, outcome);
  if (outcome == Reloaded::kTaken) {
    spdlog::info("{}: the file has changed, and its new content is in force", file.what);
  } else {
    spdlog::error("{}: the file has changed, and was not taken: {}", file.what, fault);
  }
}

}  // namespace

std::vector<ReloadCount> ReloadCounts() {
  const std::lock_guard lock(counts_mutex);
  return counts;
}

StatusOr<std::unique_ptr<ReloadWatch>> ReloadWatch::Start(std::vector<Reloadable> files) {
  {
    const std::lock_guard lock(counts_mutex);
    counts.clear();
    for (const Reloadable& file : files) counts.push_back({.what = file.what});
  }
  std::unique_ptr<ReloadWatch> watch(new ReloadWatch(std::move(files)));
  if (pipe2(watch->stop_pipe_.data(), O_CLOEXEC) != 0) {
    return ResourceExhausted(std::string("no pipe to watch files with: ") + std::strerror(errno));
  }
  TM_RETURN_IF_ERROR(ReloadOnHangUp());
  try {
    watch->thread_ = std::thread([watch = watch.get()] { watch->Loop(); });
  } catch (const std::system_error& error) {
    return ResourceExhausted(std::string("no thread to watch files with: ") + error.what());
  }
  return watch;
}

ReloadWatch::~ReloadWatch() {
  if (stop_pipe_[1] >= 0) close(stop_pipe_[1]);  // wakes the thread
  if (thread_.joinable()) thread_.join();
  if (stop_pipe_[0] >= 0) close(stop_pipe_[0]);
}

void ReloadWatch::Loop() {
  while (true) {
    pollfd sources[2] = {{stop_pipe_[0], POLLIN, 0}, {HangUpFile(), POLLIN, 0}};
    poll(sources, 2, kLookMs);
    if (sources[0].revents != 0) return;
    if (sources[1].revents != 0) {
      TakeHangUps();
      spdlog::info("SIGHUP: looking at the files again");
    }
    for (const Reloadable& file : files_) LookAt(file);
  }
}

}  // namespace tramontane
