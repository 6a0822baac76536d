// `tramontane bench` from its command line to its exit status; what it meets of the world comes in, so that
// tests bring their own. Main thread.
#pragma once

#include <atomic>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/load/clock.h"
#include "bench/load/connect.h"
#include "bench/load/options.h"
#include "bench/load/prompt_text.h"

namespace tramontane::load {

struct BenchWorld {
  std::function<StatusOr<std::unique_ptr<Transport>>(const TargetOptions&)> connect;
  std::function<StatusOr<std::string>(const TargetOptions&)> first_served_model;
  AskTarget ask;
  std::function<int(std::ostream& out, std::ostream& err)> check;  // --check; the exit status
  OptionSources options;
  Clock& clock;
  std::ostream& out;  // the table
  std::ostream& err;  // faults, and the live line
  bool err_is_terminal = false;
  std::function<std::string()> date;        // UTC, 20261123-080548
  const std::atomic<bool>* stop = nullptr;  // set by a signal
  // What the target counted in the run that was just made; none: it is not known.
  std::function<std::vector<std::pair<std::string, int64_t>>()> target_counts = {};
};

enum ExitStatus { kMade = 0, kNothingSucceeded = 1, kUsage = 2, kSloMissed = 3 };

int RunBench(int argc, const char* const* argv, const BenchWorld& world);

}  // namespace tramontane::load
