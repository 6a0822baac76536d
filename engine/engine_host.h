// EngineHost: a model folder brought to life: weights, page pool, runner, engine and its thread, in one
// owner. What `serve`, `generate --local`, tests and benchmarks start. Create and destroy on one thread; the
// engine and the accessors may then be used from any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/request/limits.h"
#include "engine/run/row_speeds.h"
#include "engine/threads/clock.h"
#include "kernels/backend.h"
#include "kernels/core/status.h"
#include "models/chat/chat_format.h"
#include "models/kv_layout.h"
#include "models/memory_plan.h"
#include "models/model.h"
#include "models/opened_model.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

// Where pages go that the pool evicts (KvTier).
struct KvTierOptions {
  int64_t host_bytes = 0;        // beside memory_bytes; 0: none, or kDiskStagingBytes in front of a disk
  std::string disk_folder = {};  // "": no disk
  int64_t disk_bytes = 0;
  std::function<void(const std::string&)> warn = nullptr;  // engine thread; at most once

  bool wanted() const { return host_bytes > 0 || !disk_folder.empty(); }
};

// Pages on their way to a disk and back, where nothing else stays on the host.
inline constexpr int64_t kDiskStagingBytes = int64_t{64} << 20;
// The store knows an image by some hundred bytes of the host's memory.
inline constexpr int64_t kMaxTierPages = int64_t{1} << 22;

struct EngineHostOptions {
  int64_t memory_bytes = 0;  // weights, workspace and pages together
  KvTierOptions tier;        // limits.host_kv_bytes and disk_kv_bytes follow from it
  // context and pool_pages 0: as much as the memory holds; else at most that. The page's size is that of the
  // opened model, steps_in_flight the backend's.
  EngineLimits limits;
  std::string chat_format;  // asked for: a name, or a file with a template; "": what the model's files say
  LoadProgress progress;    // may be null
  bool tune = false;        // kernels that the backend chooses by time are timed (Backend::Tune)
};

// The memory and the limits a host would run with.
struct EngineHostPlan {
  KvLayout layout;  // of the opened model
  MemoryPlan memory;
  EngineLimits limits;  // context, pool_pages and what recorded steps may be decided
  // What least_step_tokens was decided by, and how long that took; empty where it was given, or where no step
  // is cut (EngineLimits::decode_gap_ns).
  std::vector<RowSpeed> row_speeds;
  int64_t measuring_ns = 0;
  double page_copy_ns = 0;  // measured, between pool and host; 0: no tier
};

// Before anything is allocated: from the config and file headers alone. Limits out of their bounds are
// INVALID_ARGUMENT, naming each.
StatusOr<EngineHostPlan> PlanEngineHost(const OpenedModel& model, const Backend& backend,
                                        const EngineHostOptions& options);

// The chat format of an opened model; `asked` as EngineHostOptions::chat_format. `tokenizer` outlives it.
StatusOr<ChatFormatPtr> ChatFormatOf(const OpenedModel& model, const Tokenizer& tokenizer,
                                     const std::string& asked);

// The format's own end of turn ends answers too.
void AddEndOfTurn(const ChatFormat& format, ModelConfig* config);

// ModelConfig::padding_begin with that tokenizer. What ends an answer is drawn, whether or not the tokenizer
// knows it.
int32_t PaddingBegin(const Tokenizer& tokenizer, const ModelConfig& config);

class EngineHost {
 public:
  // Plans, loads, allocates, times the layers, warms up (one prefill and one decode) and starts the engine
  // thread. `backend` and `clock` are borrowed.
  static StatusOr<std::unique_ptr<EngineHost>> Start(OpenedModel opened, Backend& backend,
                                                     const EngineHostOptions& options, const Clock& clock);
  ~EngineHost();  // ends what still runs with UNAVAILABLE

  Engine& engine();
  const Model& model() const;
  const Tokenizer& tokenizer() const;
  const ChatFormat& chat_format() const;
  const EngineHostPlan& plan() const;
  const std::string& weight_sample() const;  // SampleOfWeights

 private:
  struct Impl;
  explicit EngineHost(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tramontane
