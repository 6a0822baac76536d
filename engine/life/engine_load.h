// EngineLoad: what the engine has and has done, one consistent picture, published after every step. A plain
// value.
#pragma once

#include <array>
#include <cstdint>

#include "engine/request/request.h"
#include "models/kv_layout.h"

namespace tramontane {

struct EngineLoad {
  int64_t waiting = 0;        // requests accepted and not yet running
  int64_t waiting_bytes = 0;  // of them, about
  int64_t unread_bytes = 0;   // of output that its readers have yet to take
  int64_t running = 0;        // sequences in prefill or decode
  int64_t total_pages = 0, free_pages = 0, held_pages = 0, cached_pages = 0;
  // Of kv_layout().groups; their sums are held_pages and cached_pages.
  std::array<int64_t, kMaxKvGroups> held_pages_of_group = {}, cached_pages_of_group = {};
  int64_t host_kv_bytes = 0, disk_kv_bytes = 0;  // images of pages beyond the pool
  // Since the start:
  int64_t steps = 0, prefill_steps = 0, decode_steps = 0;
  int64_t prompt_tokens = 0, output_tokens = 0;  // computed; prompts again after preemption
  int64_t recomputed_tokens = 0;                 // of the first: positions that were computed before
  int64_t waiting_visits = 0;                    // waiting requests that a step looked at: each to end it
  int64_t hashed_blocks = 0;  // of texts, on the engine thread; who submits hashes the prompts
  int64_t preemptions = 0;
  // By ContextPolicyType: tokens that choices which have ended did not see with their last rows.
  std::array<int64_t, kContextPolicyTypes> discarded_tokens = {};
  // Prompt tokens of sequences that have started, and how many of them were found and not computed.
  int64_t prefix_queries = 0, prefix_hits = 0;
  int64_t constrained_tokens = 0, constraint_ns = 0;  // chosen under a constraint; engine time for that
  int64_t finished_requests = 0, cancelled_requests = 0, failed_rows = 0;
  // Requests that were cancelled while their first choice waited, was prefilled or decoded; and later.
  std::array<int64_t, 3> cancelled_in_state = {};
};

}  // namespace tramontane
