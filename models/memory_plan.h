// The memory a server will take, exactly, before anything is allocated: from the config and file headers
// alone. Any thread; pure.
//
//   memory = weights + workspace + pages
//
//   weights     every packed matrix and norm vector
//   workspace   activations of the largest step, its logits and step buffers, and what the backend reserves
//   pages       the pool: what is left, in whole pages
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/core/status.h"
#include "models/opened_model.h"

namespace tramontane {

// The sizes that decide activations and workspace.
struct PlanLimits {
  int32_t max_tokens = 0;     // of one step in either lane
  int32_t max_sequences = 0;  // of one step
  int32_t max_logit_rows = 0;
  int32_t max_step_tokens = 0;    // of one prefill step: the largest chunk; decides no bytes, but what fits
  int64_t step_buffer_bytes = 0;  // page tables, token ids and records: what the engine's runner takes
};

struct MemoryPlan {
  int64_t weight_bytes = 0;     // packed
  int64_t workspace_bytes = 0;  // activations, logits, step buffers and the backend's own
  int64_t kv_budget_bytes = 0;  // what is left of the memory for pages
  int64_t page_bytes = 0;
  int64_t pool_pages = 0;
  int64_t pool_tokens = 0;  // longest sequence that the pool holds alone, at most the model's context
  // Sequences of the model's full context that fit at once, their chunks shrunk to the least.
  int64_t sequences_at_context = 0;
  int64_t weight_count = 0;      // parameters; a tied embedding counts once
  bool weights_present = false;  // else dtypes are the config's word
};

// Plans for a model under `memory_bytes` in all. The weights' dtype is read from the file headers when the
// weights are there; when they are absent, from the config (torch_dtype; bf16 without). Too little memory for
// one page per group is a ResourceExhausted naming what is needed.
StatusOr<MemoryPlan> PlanMemory(const OpenedModel& model, const Backend& backend, const PlanLimits& limits,
                                int64_t memory_bytes);

// What the backend is told of the largest step.
StepMaxima MaximaOf(const ModelConfig& config, const PlanLimits& limits);

}  // namespace tramontane
