// Sequence: one choice of a request in progress, as the scheduler and the runner see it (LiveChoice has
// more). Engine thread only. Owned by its LiveRequest; the Scheduler and step plans borrow it.
//
//   positions   0 ............ accepted_len ............ scheduled_len ......... tokens known
//               results applied | planned, in flight     | not planned yet
//
// Always: accepted_len <= scheduled_len. `Plan` advances scheduled_len, `Apply` advances accepted_len. A
// decode row's input token may still be in flight (scheduled_len == tokens.size()): the device has it.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>

#include "engine/kv/lease.h"
#include "engine/kv/names/text_path.h"
#include "engine/request/request.h"
#include "engine/request/sequence_tokens.h"

namespace tramontane {

//   kWaiting -> kPrefill -> kDecode -> kFinished     Finish leads to kFinished from everywhere
//      ^___________|___________|                     preemption leads back
enum class SequenceState : int32_t { kWaiting, kPrefill, kDecode, kFinished };
inline const char* SequenceStateName(SequenceState state) {
  constexpr const char* kNames[] = {"waiting", "prefill", "decode", "finished"};
  return kNames[static_cast<size_t>(state)];
}

// A token whose log-probability is wanted, and the position whose logits say it.
struct TokenToScore {
  int64_t position = 0;
  int32_t token = 0;
};

// Who goes first among those that have slots; then by arrival (engine/schedule/README.md).
struct Rank {
  int32_t level = 0;  // its priority, or better, where it has waited
  int64_t tag = 0;    // virtual time of its caller when it got its slots
  auto operator<=>(const Rank&) const = default;
};

struct CallerShare;  // the scheduler's

class Sequence {
 public:
  // ---- written by whoever wants tokens, before Admit and as they come; the scheduler reads it -----
  const Request* request = nullptr;  // outlives the sequence
  int32_t choice = 0;
  // Prompt, then accepted output; where discards are followed by re-evaluation, what is left of them.
  SequenceTokens tokens;
  const TextIdentity* identity = nullptr;  // of its text. Outlives the sequence
  TextPath path;                           // of `tokens`; the scheduler extends it as pages get names
  // Of a branch: the candidate whose tokens but the last follow the prompt in `tokens`. Outlives it.
  const std::vector<int32_t>* candidate = nullptr;
  int64_t discarded = 0;  // tokens that re-evaluation has taken out of `tokens`
  // Where `tokens` ends at the latest: prompt + max_tokens, less what was discarded; without a context policy
  // at most the context.
  int64_t max_len = 0;
  bool leaves_idle = false;  // it ended so that its owner may go on from it (Request::kv_owner)
  bool undecided = false;    // what its next token may be is not known yet: once preempted it is held

  // ---- written by the scheduler -----------------------------------------------------------------
  SequenceState state() const { return state_; }
  int64_t arrival() const { return arrival_; }
  const Rank& rank() const { return rank_; }
  const CallerShare* caller() const { return caller_; }
  int32_t slots() const { return slots_; }
  int32_t slot() const { return slot_; }
  bool held() const { return held_; }
  int64_t prefill_len() const { return prefill_len_; }
  int64_t scheduled_len() const { return scheduled_len_; }
  int64_t accepted_len() const { return accepted_len_; }
  int32_t steps_in_flight() const { return steps_in_flight_; }
  bool releasable() const { return state_ == SequenceState::kFinished && steps_in_flight_ == 0; }
  int64_t expected_hit() const { return lease_.expected.tokens; }
  bool awaits_pages() const { return lease_.expected.is_coming; }
  bool fits_one_chunk() const { return fits_one_chunk_; }
  const Lease& lease() const { return lease_; }
  // What it begins with where pages are kept for it: a branch with those of its prompt.
  const Lease& kept() const { return prompt_ != nullptr ? prompt_->kept_ : kept_; }
  bool has_kept() const { return !kept().tables.empty(); }
  const Timings& timings() const { return timings_; }
  const Usage& usage() const { return usage_; }

  bool is_branch() const { return candidate != nullptr; }
  // All that a branch has was asked for.
  int64_t prompt_tokens() const {
    return is_branch() ? static_cast<int64_t>(tokens.size()) : std::ssize(request->prompt);
  }
  // Where the prompt ends in `tokens` as long as there is no output.
  int64_t prompt_len() const { return prompt_tokens() - discarded; }
  // Scores of the prompt's tokens but the first; or, where there are candidates, the prompt gives those of
  // their first tokens, and each branch the others of its candidate.
  bool wants_scores() const {
    return is_branch() ||
           (choice == 0 && (!request->candidates.empty() || request->output.prompt_logprobs >= 0));
  }
  TokenToScore ToScore(int64_t index) const {
    const auto i = static_cast<size_t>(index);
    if (is_branch()) return {std::ssize(request->prompt) + index, (*candidate)[i + 1]};
    if (!request->candidates.empty()) return {prompt_len() - 1, request->candidates[i].front()};
    return {index, request->prompt[i + 1]};
  }
  // How many of them the positions below give.
  int64_t ScoresBefore(int64_t position) const {
    if (!wants_scores()) return 0;
    if (is_branch()) return std::max<int64_t>(0, position - std::ssize(request->prompt));
    if (!request->candidates.empty()) return position < prompt_len() ? 0 : std::ssize(request->candidates);
    return std::min(position, prompt_len() - 1);
  }
  int64_t output_tokens() const { return static_cast<int64_t>(tokens.size()) - prompt_len(); }
  ContextPolicy policy() const { return request->context_policy.value_or(ContextPolicy()); }
  bool reevaluates() const { return policy().type == ContextPolicyType::kReevaluate; }
  // The first position that a plan computes next; of one that waits, as far as is known.
  int64_t next_position() const {
    return state_ == SequenceState::kWaiting ? expected_hit() : scheduled_len_;
  }
  int64_t prefill_left() const { return prefill_len_ - scheduled_len_; }
  // The token at max_len - 1 is the last one, and it is never fed back. Before a discard nothing is computed
  // at positions that will be others'.
  bool decode_left() const {
    return scheduled_len_ < std::min(max_len - 1, reevaluates() ? policy().n_ctx : INT64_MAX);
  }
  // The first positions whose pages are kept for what is computed after a discard.
  int64_t prefix_to_keep() const { return reevaluates() ? policy().n_keep : 0; }
  int64_t kept_len() const {  // positions of kept()
    if (!has_kept()) return 0;
    return is_branch() ? std::ssize(request->prompt) : prefix_to_keep();
  }
  // Positions from here on get no names: nobody asks for a candidate as he does for a prompt.
  int64_t names_end() const {
    return is_branch() ? std::min<int64_t>(accepted_len_, std::ssize(request->prompt)) : accepted_len_;
  }

 private:
  friend class Scheduler;  // and its parts
  friend class Admission;
  friend class Preemption;
  friend class PrefillLane;
  friend class PartWay;
  friend class Callers;
  friend class FairQueue;
  friend class Lead;
  friend struct PlacedSequence;  // tests place sequences by hand

  SequenceState state_ = SequenceState::kWaiting;
  int64_t arrival_ = 0;            // order over all requests
  CallerShare* caller_ = nullptr;  // whose it is, while it is alive
  Rank rank_;                      // who is older: then by arrival, then by choice
  bool is_ranked_ = false;         // has had slots
  int64_t level_since_ns_ = 0;     // it has waited at this level
  int64_t tag_end_ = 0;            // where its caller's virtual time goes on
  int64_t expected_tokens_ = -1;   // that its caller was charged; -1: what it computes is known
  int32_t wanted_slots_ = 0;       // in the queue
  int32_t slots_ = 0;        // of EngineLimits::max_sequences: its own and those of choices not yet forked
  int32_t slot_ = -1;        // its own: where the device keeps what stays from step to step; -1: none
  bool held_ = false;        // in no plan until Resume
  int64_t prefill_len_ = 0;  // tokens to prefill: the prompt, or after preemption prompt + output
  int64_t seen_reads_ = -1;  // Admission::tier_reads_ when that was looked at last
  bool fits_one_chunk_ = false;  // its prefill fits the half of a step that the oldest prompt leaves
  int64_t scheduled_len_ = 0;    // positions planned
  int64_t accepted_len_ = 0;     // positions applied
  int64_t scored_len_ = 0;       // scores that were asked for
  Lease lease_;
  // Under re-evaluation: the first n_keep positions, in every group, for what is computed after a discard. Of
  // a prompt with branches: all, until the request ends. Of no table where none are kept.
  Lease kept_;
  bool has_branches_ = false;
  const Sequence* prompt_ = nullptr;  // of a branch, which outlives it
  struct PrefillNeeds {
    int64_t pages = 0;
    int32_t unplanned = 0;  // 0 or 1
    int32_t long_unplanned = 0;
  };
  PrefillNeeds needs_;           // as PartWay has counted them
  int32_t steps_in_flight_ = 0;  // plans that mention this sequence and are not applied
  Timings timings_;              // when it was admitted, and when its prefill was planned
  Usage usage_;                  // what was cached; its chunks and preemptions
};

inline bool Older(const Sequence& a, const Sequence& b) {
  if (a.rank() != b.rank()) return a.rank() < b.rank();
  return a.arrival() != b.arrival() ? a.arrival() < b.arrival() : a.choice < b.choice;
}
struct IsOlder {
  bool operator()(const Sequence* a, const Sequence* b) const { return Older(*a, *b); }
};

// Of lists of sequences, oldest first.
template <typename List>
void InsertByAge(List& list, Sequence* sequence) {
  list.insert(std::upper_bound(list.begin(), list.end(), sequence, IsOlder()), sequence);
}
template <typename List>
bool RemoveFrom(List& list, const Sequence* sequence) {
  const auto at = std::find(list.begin(), list.end(), sequence);
  if (at == list.end()) return false;
  list.erase(at);
  return true;
}

}  // namespace tramontane
