// ReloadWatch: a thread that looks each second, and at once on SIGHUP, whether files have changed, and tells
// the log what came of it.
//
// Made and destroyed by the main thread. ReloadCounts: any thread.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/core/status.h"
#include "server/base/reloaded.h"
#include "server/watch/process_counts.h"

namespace tramontane {

struct Reloadable {
  std::string what;  // "keys", "tls"
  // On the watch's thread. `fault`: why the new content was not taken, for the log.
  std::function<Reloaded(std::string* fault)> look_again;
};

// Of the files that are watched, since the process began.
std::vector<ReloadCount> ReloadCounts();

class ReloadWatch {
 public:
  // RESOURCE_EXHAUSTED: no pipe, or no thread.
  static StatusOr<std::unique_ptr<ReloadWatch>> Start(std::vector<Reloadable> files);
  ~ReloadWatch();
  ReloadWatch(const ReloadWatch&) = delete;
  ReloadWatch& operator=(const ReloadWatch&) = delete;

 private:
  explicit ReloadWatch(std::vector<Reloadable> files) : files_(std::move(files)) {}
  void Loop();

  const std::vector<Reloadable> files_;
  std::array<int, 2> stop_pipe_ = {-1, -1};
  std::thread thread_;
};

}  // namespace tramontane
