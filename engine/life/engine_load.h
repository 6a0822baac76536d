// EngineLoad: what the engine has and has done, published after every step. A plain value.
#pragma once

#include <array>
#include <cstdint>

#include "engine/request/request.h"
#include "models/kv_layout.h"

namespace tramontane {

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
  int64_t hashed_blocks =
      0;  // of texts, on the engine thread, since the start; who submits hashes the prompts
  int64_t preemptions = 0;
  // Prompt tokens of sequences that have started, and how many of them were found and not computed.
  // By ContextPolicyType: of choices that have ended, those that their last rows did not see.
  std::array<int64_t, kContextPolicyTypes> discarded_tokens = {};
  int64_t prefix_queries = 0, prefix_hits = 0;
  int64_t constrained_tokens = 0,
          constraint_ns = 0;  // tokens chosen under a constraint; engine time for that
  int64_t finished_requests = 0, cancelled_requests = 0, failed_rows = 0;
};

}  // namespace tramontane
