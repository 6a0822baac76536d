// Every bound of the engine in one place, with what happens when it is reached. Printed at start.
// Fixed before the engine starts; read by any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/request/lane_policy.h"
#include "kernels/context_policy.h"
#include "kernels/core/status.h"

namespace tramontane {

// A plan is made while the one before it is computed, and then that one is collected: see
// engine/run/README.md.
inline constexpr int32_t kMaxStepsInFlight = 2;
// A recording holds no buffer, but the device keeps a description of each of its launches.
inline constexpr int32_t kMaxRecordedSteps = 64;
// Fewer rows of logits at once would read the LM head more often than a long prompt's scores are worth.
inline constexpr int32_t kScoredRows = 64;

inline constexpr int32_t kMaxCandidates = 1024;

struct EngineLimits {
  // ---- the door (any breach is refused at once, naming the field) -------------------------------
  int32_t max_queued_requests = 2048;             // not yet running; one more: RESOURCE_EXHAUSTED
  int64_t max_queued_bytes = int64_t{256} << 20;  // that those hold; more: RESOURCE_EXHAUSTED
  int64_t context = 0;       // prompt + output of one sequence: min(the model's, what the pool holds)
  int32_t max_choices = 16;  // `n` of one request: INVALID_ARGUMENT
  int32_t max_stop_strings = 16;
  int32_t max_stop_bytes = 256;  // of one stop string
  int32_t max_stop_token_ids = 64;
  int32_t max_logit_bias = 1024;  // entries
  int32_t max_forced_prefix_ids = 16;
  ContextPolicy context_policy;  // of requests that bring none; see Request::context_policy

  // ---- running ----------------------------------------------------------------------------------
  int32_t max_sequences = 64;  // choices running at once; later requests wait in order
  // That a request waits for slots, or with them: it counts as a level of priority more.
  int64_t priority_ageing_ns = 10'000'000'000;
  int32_t page_size = 16;     // tokens
  int64_t pool_pages = 0;     // of all groups; none free: the youngest sequence is preempted and recomputed
  bool prefix_cache = true;   // pages stay known by their tokens until others need the room
  int64_t host_kv_bytes = 0;  // images of pages that the pool evicted: then the oldest goes to disk, or away
  int64_t disk_kv_bytes = 0;  // of those, on the disk: then the oldest goes away
  int32_t steps_in_flight = 1;  // 2: a step is computed while the one before it is read and applied

  // ---- the two lanes (engine/schedule/README.md states the bounds that follow from these) ----------------
  int32_t max_step_tokens = 512;  // tokens of one prefill step
  int64_t max_step_cost = 0;      // cost of one prefill step, in token equivalents; 0: 2 * max_step_tokens
  int64_t attended_keys_per_token = 4096;  // kappa: cost of a chunk = tokens + attended keys / kappa
  int32_t max_partial_prefills = 4;        // prompts part-way through prefill between steps; the rest wait
  LanePolicy lane_policy = LanePolicy::kFair;
  int32_t max_prefill_steps = 1;  // kFair: consecutive prefill steps while a decode sequence waits
  // kFair: while something decodes, prefill steps are cut to what by its measured cost fits, with the decode
  // step behind them, into this time; but never to fewer tokens than the next bound.
  int64_t decode_gap_ns = 0;      // 0: they are not cut
  int32_t least_step_tokens = 0;  // 0: EngineHost measures where 90 % of the speed begins; without a host 1

  // ---- constraints ------------------------------------------------------------------------------
  // For the masks of a step, of all choices: longer the step does not wait, and later rows sit it out. It is
  // also what a request's choices may spend together on a token each, of a processor; ten tokens' worth ahead
  // of that, or more for one mask, and a choice ends with an error.
  int64_t max_constraint_step_ns = 20'000'000;
  int32_t mask_workers = 2;  // threads that fill masks; a choice whose mask is not filled yet sits steps out

  // ---- decode steps that a device replays ---------------------------------------------------------
  // Rows of each, ascending, at most max_sequences; a step takes the narrowest that is wide enough, and is
  // queued op by op where none is. Empty: 1, 2, 4, 8, then every 8 up to max_sequences, or every 16, 32 ...
  // so that there are at most max_recorded_steps.
  // Some of them, each about twice the one before, are there once more for rows that see sinks.
  std::vector<int32_t> recorded_rows = {};
  // What they may take of a device's memory, by the plan's estimate; 0: an eighth of what weights and
  // workspace leave. Wider steps of a list that was given are left out.
  int64_t max_recording_bytes = 0;
  int32_t max_recorded_steps = kMaxRecordedSteps;  // as many of these at most as the memory plan has room for

  // ---- output -----------------------------------------------------------------------------------
  // Rows of logits held at once, which go through the LM head in one product; prompts are scored in slices of
  // it. 0: kScoredRows, or max_sequences where that is more.
  int32_t max_logit_rows = 0;
  int32_t output_queue_steps =
      64;  // steps whose results may wait for the output thread; full: the engine waits
  // Of a choice, that its reader has not taken, or as many as the context has where that is more. One more,
  // which only a text under a context policy can have: its request ends with RESOURCE_EXHAUSTED.
  int64_t max_unread_tokens = 32'768;
  // Of all choices, that their readers have not taken. Beyond it a request of which kBehindBytes or more wait
  // ends with its next token, RESOURCE_EXHAUSTED.
  int64_t max_unread_bytes = int64_t{256} << 20;

  // Of one step in either lane.
  int32_t max_tokens() const { return max_step_tokens > max_sequences ? max_step_tokens : max_sequences; }
  // Scores of one prefill step: of its tokens, or of the first ones of so many candidates at one position.
  int32_t step_scores() const { return max_step_tokens + kMaxCandidates; }
  int32_t logit_rows() const {
    if (max_logit_rows > 0) return max_logit_rows;
    return max_sequences > kScoredRows ? max_sequences : kScoredRows;
  }
  int64_t unread_tokens() const { return context > max_unread_tokens ? context : max_unread_tokens; }
  std::vector<int32_t> RowsToRecord() const;  // of recorded_rows, or of what stands for none
  std::vector<int32_t> RowsLeftOut() const;   // that would be recorded if max_recorded_steps were no bound
  std::vector<int32_t> RowsToRecordWithSinks() const;
  // Forward passes of both.
  int32_t recorded_steps() const {
    return static_cast<int32_t>(RowsToRecord().size() + RowsToRecordWithSinks().size());
  }
  // Lowers max_recorded_steps until recorded_steps() is at most so many.
  void BoundRecordings(int32_t most);
  int64_t step_cost() const { return max_step_cost > 0 ? max_step_cost : int64_t{2} * max_step_tokens; }

  // Every breach at once, one line each; OK when sound.
  Status Validate() const;
  // One "name = value: what happens when it is reached; of a step N us" line per bound: what it may take of
  // the engine thread in one step at most (step_bounds.h).
  std::string ToString() const;
};

}  // namespace tramontane
