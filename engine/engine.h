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

#include "engine/kv/tier/kv_tier.h"
#include "engine/life/engine_load.h"
#include "engine/life/engine_model.h"
#include "engine/output/output_metrics.h"
#include "engine/output/token_stream.h"
#include "engine/request/limits.h"
#include "engine/request/request.h"
#include "engine/run/model_runner.h"
#include "engine/step_trace.h"
#include "engine/threads/clock.h"
#include "engine/transfer/kv_report.h"
#include "engine/transfer/kv_transfer.h"
#include "kernels/core/status.h"
#include "models/kv_layout.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

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
  // Aborts where a page or an image is lost or counted twice. Reads all of them: for tests. The thread that
  // steps.
  void CheckAccounting() const;
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
