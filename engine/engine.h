// Engine: requests in, tokens out. Step() is the whole of it, in verbs.
//
// Threads: Submit, Load and the rest from any thread; Step and WaitForWork from one thread
// (EngineThread's); results leave through the output thread, which the engine owns. No mutex can be reached
// from Step. Always: an accepted request ends its stream exactly once, whatever happens.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/clock.h"
#include "engine/kv_report.h"
#include "engine/kv_tier.h"
#include "engine/kv_transfer.h"
#include "engine/limits.h"
#include "engine/model_runner.h"
#include "engine/output_metrics.h"
#include "engine/request.h"
#include "engine/step_cost_model.h"
#include "engine/step_trace.h"
#include "engine/token_stream.h"
#include "kernels/core/status.h"
#include "models/kv_layout.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

// What the engine must know of the model.
struct EngineModel {
  int32_t vocab_size = 0;
  std::vector<int32_t> eos_ids;
  KvLayout kv_layout;
  StepCosts costs = {};  // what is known of its steps' times beforehand; the engine learns on
};

// One consistent picture for GetLoad and metrics, published after every step.
struct EngineLoad {
  int64_t waiting = 0;  // requests accepted and not yet running
  int64_t running = 0;  // sequences in prefill or decode
  int64_t total_pages = 0, free_pages = 0, held_pages = 0, cached_pages = 0;
  std::array<int64_t, kMaxKvGroups> held_pages_of_group =
      {};  // of kv_layout().groups; their sum is held_pages
  std::array<int64_t, kMaxKvGroups> cached_pages_of_group = {};  // the same of cached_pages
  int64_t host_kv_bytes = 0, disk_kv_bytes = 0;                  // images of pages beyond the pool
  int64_t steps = 0, prefill_steps = 0, decode_steps = 0;
  int64_t prompt_tokens = 0, output_tokens = 0;  // computed since the start; prompts again after preemption
  int64_t waiting_visits = 0;  // waiting requests that a step looked at, since the start: each to end it
  int64_t preemptions = 0;
  // Prompt tokens of sequences that have started, and how many of them were found and not computed.
  // By ContextPolicyType: of choices that have ended, those that their last rows did not see.
  std::array<int64_t, kContextPolicyTypes> discarded_tokens = {};
  int64_t prefix_queries = 0, prefix_hits = 0;
  int64_t constrained_tokens = 0,
          constraint_ns = 0;  // tokens chosen under a constraint; engine time for that
  int64_t finished_requests = 0, cancelled_requests = 0, failed_rows = 0;
};

enum class StepOutcome {
  kWorked,
  kNothingToDo,
  kNoRoom,  // in the output queue: the output thread is behind. Nothing was done
};

class Engine {
 public:
  // `tokenizer` may be null: then there is no text and no stop strings (benchmarks). All borrowed, outlive
  // it; the tier is the engine's. REQUIRES: limits.Validate() is OK; a tier comes with the prefix cache.
  Engine(const EngineLimits& limits, const EngineModel& model, ModelRunner& runner,
         const Tokenizer* tokenizer, const Clock& clock, std::unique_ptr<KvTier> tier = nullptr);
  ~Engine();  // streams still open end with UNAVAILABLE. REQUIRES: nobody steps

  // Checks the request against the limits and puts it in the inbox. Errors name the field, the value and the
  // limit: INVALID_ARGUMENT, RESOURCE_EXHAUSTED (queue full), INTERNAL (the device is lost). Ids are only
  // told on; whoever cares keeps them distinct.
  StatusOr<std::shared_ptr<TokenStream>> Submit(Request request, std::function<void()> on_ready);

  // One step: Drain, Reap, Plan, Forward, Sample, Collect, Apply, Publish.
  StepOutcome Step();

  // Blocks until there may be work (a submission, room in the output queue, Wake) or the time is over; a time
  // below 0 never is.
  void WaitForWork(int64_t timeout_ns);
  void Wake();

  // Every accepted request's stream is done (its reader may not have taken the end yet).
  bool idle() const;
  // Not OK once the device is lost: every stream has ended with this, and no request is taken any more.
  Status fatal() const;

  // How long the engine has had work and ended no step; 0 without work. What a watchdog looks at.
  int64_t stalled_ns() const;

  EngineLoad Load() const;
  const OutputMetrics& output_metrics() const;
  std::shared_ptr<StepTrace> step_trace() const;  // may outlive the engine
  // The KV cache's tables, as they are when the next step begins: its answer is there then. The question may
  // outlive the engine. RESOURCE_EXHAUSTED: KvQuestions::kMost wait already.
  StatusOr<std::shared_ptr<KvQuestion>> AskKv();

  // Cached pages are copied to the host, or put into the cache from there, while requests go on; the transfer
  // may outlive the engine. RESOURCE_EXHAUSTED: KvTransfers::kMost wait already. REQUIRES: keeps_pages().
  Status StartTransfer(const std::shared_ptr<KvTransfer>& transfer);
  // Whether its pages can be copied.
  bool keeps_pages() const;

  const EngineLimits& limits() const;
  const KvLayout& kv_layout() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tramontane
