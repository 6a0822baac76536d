// LiveRequest: one accepted request for as long as it lives, shared by the engine thread, the output thread
// and, where it is constrained, the mask workers. Each part says who may touch it. Made by Submit; freed by
// the last thread that lets go of it.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/kv/names/text_path.h"
#include "engine/output/request_output.h"
#include "engine/request/limits.h"
#include "engine/request/request.h"
#include "engine/request/sampling_history.h"
#include "engine/schedule/step_plan.h"
#include "models/grammar/grammar.h"
#include "models/tokenizer/tokenizer.h"

namespace tramontane {

struct LiveRequest;
class OutputConstraint;

// Where the texts of a constrained request begin.
struct ConstraintStart {
  static constexpr int64_t kStepsAhead = 10;  // steps whose time a request may spend before it has earned it

  TextStart text = TextStart::kWithinMessage;
  size_t mask_words = 0;       // MaskWords(vocab)
  std::vector<uint32_t> mask;  // of the first token; empty: any may come
  int64_t left_ns = 0;         // of the request's share, before the first token
};

// One choice: the sequence that is scheduled, and what only the life of its request knows of it.
struct LiveChoice : Sequence {
  LiveRequest* live = nullptr;                   // whose choice it is
  std::optional<SamplingHistory> history;        // from the first sample on
  std::shared_ptr<OutputConstraint> constraint;  // null: none; shared with the worker that fills its mask
  bool late = false;              // sits the step out that is being sampled: its mask was not filled in time
  bool ended = false;             // its end was given to the output thread
  int64_t computed = 0;           // positions that were computed at least once
  Timings moments;                // those that the scheduler does not know
  std::vector<TokenInfo> scores;  // as far as they have come

  // ---- engine thread ----------------------------------------------------------------------------
  // All that is brought to the sampler but the history and the mask, for the token behind `position`.
  void FillSamplingRow(int64_t position, SamplingRow* row) const;
  std::span<const uint32_t> mask() const;  // for the next token; empty: all are allowed
  // A mask that allows only what min_tokens bans lifts that ban, where the request says so.
  void AllowWhatTheMaskAllows();
  // Why the sampler gave it no token: the model's fault, INTERNAL, or that of a constraint that allows none
  // where the choice may not end yet, INVALID_ARGUMENT.
  Status WhyNoToken() const;
  // Takes out the oldest tokens behind those that are kept.
  void Discard(int64_t count);
  // Tokens that the last row computed did not see any more.
  int64_t DiscardedTokens() const;
};

struct LiveRequest : std::enable_shared_from_this<LiveRequest> {
  // `tokenizer` may be null: then there is no text.
  LiveRequest(Request asked, std::shared_ptr<TokenStream> to, const Tokenizer* tokenizer,
              const std::vector<int32_t>& eos_ids)
      : request(std::move(asked)),
        identity{.salt = request.cache_salt,
                 .policy = MaskPolicyOf(request.context_policy.value_or(ContextPolicy()))},
        history_after_prompt(request, eos_ids),
        output(request, std::move(to), tokenizer) {}

  // ---- any thread: not changed once Submit has set it --------------------------------------------
  const Request request;
  const TextIdentity identity;
  const SamplingHistory history_after_prompt;  // what each choice's own history starts from
  TextPath path;                               // of what the prompt's pages may be named by
  ConstraintStart constraint_start;

  // Of heap memory that grows with what it asks for while it waits; the choices share one prompt.
  int64_t queued_bytes() const;

  // ---- engine thread -----------------------------------------------------------------------------
  uint64_t seed = 0;
  bool queued = true;               // counts in the inbox
  bool started = false;             // its Started was given to the output thread
  std::vector<LiveChoice> choices;  // [n] from Begin to its release, never moved: plans point to them
  // From the prompt's last step to its release: of candidates of several tokens, in their order, as far as
  // they are made. Never moved either.
  std::vector<LiveChoice> branches;
  size_t branches_to_make = 0;
  size_t branches_left = 0;  // those, and those that have not ended

  bool all_ended() const {
    return std::all_of(choices.begin(), choices.end(), [](const LiveChoice& choice) { return choice.ended; });
  }
  void MakeChoices(const EngineLimits& limits);
  void PrepareBranches();
  // The next one. REQUIRES: branches_to_make > 0.
  LiveChoice& MakeBranch();
  // What was asked for: all scores in order, or none where some have not come.
  std::vector<TokenInfo> TakeScores();

  // ---- between threads: each part says whose it is ----------------------------------------------
  RequestOutput output;
  std::atomic<int64_t> constraint_left_ns{0};  // mask workers: of the share of all choices
};

Status NotFinite();  // of the model's logits

// Whose row it is: all sequences that are planned are choices of live requests.
inline LiveChoice& ChoiceOf(const StepRow& row) { return static_cast<LiveChoice&>(*row.sequence); }

}  // namespace tramontane
