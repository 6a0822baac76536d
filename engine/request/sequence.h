// Sequence: one choice of a request in progress.
// Engine thread only. Owned by its LiveRequest; the Scheduler and step plans borrow it.
//
//   positions   0 ............ accepted_len ............ scheduled_len ......... tokens known
//               results applied | planned, in flight     | not planned yet
//
// Always: accepted_len <= scheduled_len. `Plan` advances scheduled_len, `Apply` advances accepted_len. A
// decode row's input token may still be in flight (scheduled_len == tokens.size()): the device has it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

#include "engine/kv/lease.h"
#include "engine/kv/names/text_path.h"
#include "engine/request/candidate_tree.h"
#include "engine/request/request.h"
#include "engine/request/sampling_history.h"
#include "engine/request/sequence_tokens.h"

namespace tramontane {

struct LiveRequest;
class OutputConstraint;

//   kWaiting -> kPrefill -> kDecode -> kFinished     Finish leads to kFinished from everywhere
//      ^___________|___________|                     preemption leads back
enum class SequenceState : int32_t { kWaiting, kPrefill, kDecode, kFinished };
const char* SequenceStateName(SequenceState state);

struct Sequence {
  // ---- set by the engine ------------------------------------------------------------------------
  const Request* request = nullptr;  // outlives the sequence
  int32_t choice = 0;
  int64_t arrival = 0;  // order of submission over all requests: who is older (then by choice)
  // Prompt, then accepted output; where discards are followed by re-evaluation, what is left of them.
  SequenceTokens tokens;
  const TextIdentity* identity = nullptr;  // of its text. Outlives the sequence
  TextPath path;                           // of `tokens`, as far as their pages have names
  const CandidateTree* tree = nullptr;     // where candidates are scored: of what `tokens` are. Outlives it
  int64_t discarded = 0;                   // tokens that re-evaluation has taken out of `tokens`
  // Where `tokens` ends at the latest: prompt + max_tokens, less what was discarded; without a context policy
  // at most the context.
  int64_t max_len = 0;
  bool leaves_idle = false;  // it ended so that its owner may go on from it (Request::kv_owner)
  bool undecided = false;    // what its next token may be is not known yet: once preempted it is held

  // ---- kept by the scheduler --------------------------------------------------------------------
  SequenceState state = SequenceState::kWaiting;
  int32_t slots = 0;        // of EngineLimits::max_sequences: its own and those of choices not yet forked
  int32_t slot = -1;        // its own: where the device keeps what stays from step to step; -1: none
  int64_t prefill_len = 0;  // tokens to prefill: the prompt, or after preemption prompt + output
  bool held = false;        // in no plan until Resume
  // Of these, while it waits: what the store knew when it began to. Its plans are made as if it began there.
  int64_t expected_hit = 0;
  bool expects_copy = false;    // that ends within a page, which is another lease's too
  bool awaits_pages = false;    // while it waits: of what the store knew some is on its way from the tier
  int64_t seen_reads = -1;      // Scheduler::tier_reads_ when that was looked at last
  bool fits_one_chunk = false;  // its prefill fits the half of a step that the oldest prompt leaves
  int64_t scheduled_len = 0;    // positions planned
  int64_t accepted_len = 0;     // positions applied
  int64_t scored_len = 0;       // scores that were asked for
  Lease lease;
  // Under re-evaluation: the first n_keep positions, in every group, for what is computed after a discard.
  // Of no table where none are kept.
  Lease kept;
  int32_t steps_in_flight = 0;  // plans that mention this sequence and are not applied

  // ---- both -------------------------------------------------------------------------------------
  Timings timings;
  Usage usage;

  // ---- the engine's own: nothing is scheduled by these -------------------------------------------
  LiveRequest* live = nullptr;                   // whose choice it is
  std::optional<SamplingHistory> history;        // from the first sample on
  std::shared_ptr<OutputConstraint> constraint;  // null: none; shared with the worker that fills its mask
  bool late = false;   // sits the step out that is being sampled: its mask was not filled in time
  bool ended = false;  // its end was given to the output thread

  // With all candidates, where there are any.
  int64_t prompt_tokens() const {
    return tree != nullptr ? tree->places() : static_cast<int64_t>(request->prompt.size());
  }
  // Where the prompt ends in `tokens` as long as there is no output.
  int64_t prompt_len() const { return prompt_tokens() - discarded; }
  // The scores that the request wants: of the prompt's tokens but the first, or of the candidates' tokens.
  bool wants_scores() const {
    return choice == 0 && (tree != nullptr || request->output.prompt_logprobs >= 0);
  }
  TokenToScore ToScore(int64_t index) const {
    if (tree != nullptr) return tree->scores[static_cast<size_t>(index)];
    return {index, request->prompt[static_cast<size_t>(index) + 1]};
  }
  // How many of them the positions below give.
  int64_t ScoresBefore(int64_t position) const {
    return tree != nullptr ? tree->ScoresBefore(position) : std::min(position, prompt_len() - 1);
  }
  int64_t output_tokens() const { return static_cast<int64_t>(tokens.size()) - prompt_len(); }
  // Positions that are computed before a discard, after which others take their places.
  int64_t computed_before_discard() const {
    const ContextPolicy& policy = request->context_policy.value_or(ContextPolicy());
    return policy.type == ContextPolicyType::kReevaluate ? policy.n_ctx : INT64_MAX;
  }
  bool releasable() const { return state == SequenceState::kFinished && steps_in_flight == 0; }
};

inline bool Older(const Sequence& a, const Sequence& b) {
  return a.arrival != b.arrival ? a.arrival < b.arrival : a.choice < b.choice;
}

}  // namespace tramontane
