// The memory a server will take, exactly but for recorded steps, before anything is allocated: from the
// config and file headers alone. Any thread; pure.
//
//   memory = weights + workspace + recorded steps + pages
//
//   weights     every packed matrix and norm vector
//   workspace   activations of the largest step, its logits and step buffers, and what the backend reserves
//   recorded    an estimate: RecordingBytes, where the backend records decode steps; of those asked for as
//               many as fit their bound
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
  int32_t max_step_tokens = 0;      // of one prefill step: the largest chunk; decides no bytes, but what fits
  int32_t recorded_steps = 0;       // forward passes of decode steps that the backend is to record
  int64_t max_recording_bytes = 0;  // that those may take; 0: a kRecordingShare-th of what is left for them
  int64_t step_buffer_bytes = 0;    // page tables, token ids and records: what the engine's runner takes
};

struct MemoryPlan {
  int64_t weight_bytes = 0;      // packed
  int64_t workspace_bytes = 0;   // activations, logits, step buffers and the backend's own
  int32_t recorded_steps = 0;    // decode steps that a device replays
  int32_t unrecorded_steps = 0;  // that were to be recorded and are beyond the bound
  int64_t recording_bytes = 0;   // of the recorded ones
  int64_t kv_budget_bytes = 0;   // what is left of the memory for pages
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

// What a device keeps of recorded decode steps, an upper estimate: how much it is can only be seen once they
// are recorded, and a backend says it then (Backend::remarks). Launches of a layer and of what stands around
// layers, as many as the CUDA backend has at most where a weight is of one format and is not decoded a slice
// at a time (from 17 rows on: some twenty of a layer of 7B, of more than 64 some thirty); bytes of a launch
// as an instantiated CUDA graph was seen to take them elsewhere, its parameters among them, five times what
// an H100 takes.
inline constexpr int64_t kLaunchesOfLayer = 16, kLaunchesOfStep = 32;
inline constexpr int64_t kBytesOfRecordedLaunch = int64_t{16} << 10;
int64_t RecordingBytes(const ModelConfig& config, int32_t recorded_steps);

// How many of `steps` recordings may be made: those that max_bytes hold or, where it is 0, this share of what
// weights and workspace leave. Pages want the rest, and a step that is not recorded is queued op by op.
inline constexpr int64_t kRecordingShare = 8;
int32_t RecordedStepsThatFit(const ModelConfig& config, int32_t steps, int64_t max_bytes, int64_t left_bytes);

// What the backend is told of the largest step. format: of pages; quantised_numbers: of the model's weights,
// as StepMaxima has it.
StepMaxima MaximaOf(const ModelConfig& config, const KvFormat& format, const PlanLimits& limits,
                    int64_t quantised_numbers);

}  // namespace tramontane
