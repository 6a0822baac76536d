// One measured run: a plan, made of the options, sent and summed up. Main thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/load/options.h"
#include "bench/load/prompt_text.h"
#include "bench/load/runner.h"

namespace tramontane::load {

struct RunPlan {
  ScheduleOptions schedule;
  RunLimits limits;
  SummaryOptions summary;
  int64_t most_requests = 0;
  std::vector<std::string> class_names;
  IdRange token_ids;
  uint64_t nonce = 0;
  bool wants_text = false;
  bool simulated = false;  // TargetOptions::simulated
};

StatusOr<RunPlan> PlanOf(const BenchOptions& options);

// What a run works with; all outlive it.
struct RunTools {
  Transport& transport;
  Clock& clock;
  TextTokenizer* tokenizer = nullptr;  // for plans that want text; none: words
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const RunProgress&)> progress = {};
  std::string secret = {};  // taken out of what a server may have echoed
};

struct MeasuredRun {
  RunResult result;
  Summary summary;
  std::vector<std::pair<std::string, Summary>> classes;        // of a mix; else empty
  std::vector<std::pair<std::string, int64_t>> target_counts;  // what the target itself counted, if it tells
  int64_t planned = 0;
  int64_t left_out = 0;           // by max_context
  int64_t prompt_mismatches = 0;  // successes whose usage counts other input tokens than planned
  double offered_rate = 0;    // requests a second as intended; infinite where all are at once or closed loop
  bool client_bound = false;  // what was measured may be the client
};

// `number` tells the runs of one invocation apart: each has prompts and request ids of its own.
StatusOr<MeasuredRun> Measure(const RunPlan& plan, const RunTools& tools, int64_t number = 0);

}  // namespace tramontane::load
