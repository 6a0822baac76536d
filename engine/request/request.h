// What was asked: immutable once submitted. Built by an RPC's worker, moved to the engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv/kv_owner.h"
#include "engine/request/token_counts.h"
#include "kernels/context_policy.h"
#include "kernels/core/status.h"
#include "models/chat/thought_marks.h"
#include "models/grammar/grammar.h"

namespace tramontane {

struct EngineLimits;

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;
  int32_t top_k = 0;  // 0 and -1: all
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::optional<uint64_t> seed;                       // unset: drawn at admission and reported in Started
  std::vector<std::pair<int32_t, float>> logit_bias;  // (token id, added)
  std::vector<int32_t> banned;                        // ids that never come, whatever their bias
};

struct StoppingParams {
  std::optional<int64_t> max_tokens;  // unset: the rest of the context; 0: score the prompt only
  int64_t min_tokens = 0;             // eos and stop token ids are banned, stop strings unmatched, until then
  std::vector<std::string> stop;      // UTF-8; of the answer, never in a thought or across its border
  std::vector<int32_t> stop_token_ids;
  bool include_stop = false;  // the matched stop string stays in the text
  bool ignore_eos = false;
  int64_t time_limit_ns = 0;  // from admission's clock `received_ns`; 0: none. Ends with kTimeLimit and OK
};

struct OutputParams {
  int32_t logprobs = -1;         // -1: none; N: the chosen token's and the N highest
  int32_t prompt_logprobs = -1;  // the same for every prompt token but the first
  bool skip_special_tokens = true;
  bool prompt_tokens = false;       // the prompt's ids in Started
  std::vector<int32_t> marked_ids;  // tokens of whose place in the text the reader is told (TextMark)
  // What of the text is a thought, in which no stop text counts. Its control tokens are among marked_ids.
  ThoughtMarks thoughts;
};

// What the text of each choice must be.
struct ConstraintParams {
  std::shared_ptr<const Grammar> grammar;  // of this model's vocabulary; null: anything
  std::vector<int32_t> forced_prefix;  // tokens that the output begins with, in front of the grammar's text
  // Where the grammar allows only what min_tokens bans, that comes all the same; else it is an error.
  bool goes_before_min_tokens = false;
};

// Whose part of the machine a request takes, and when.
struct ShareParams {
  std::string caller;    // requests of one caller share one part; "": of none, and nobody's part bounds it
  int32_t weight = 1;    // of the caller: parts of seats and of prefill tokens are proportional to it
  int32_t priority = 0;  // lower is admitted first
};
inline constexpr int32_t kMostPriority = 1'000;  // and the least is as far below 0
inline constexpr int32_t kMostWeight = 1'000;

// Of what came before received_ns: a part of the parsing may be behind it.
struct ArrivalTimes {
  int64_t begun_ns = 0;  // the first byte, on the engine's clock; 0: received_ns
  int64_t receive_ns = 0, parse_ns = 0;
};

struct Request {
  std::string id;
  std::vector<int32_t> prompt;  // token ids, at least one
  // Continuations of the prompt to be scored, each as if it were alone behind it; none empty. Their tokens'
  // logprobs then come in place of the prompt's, asked for or not. With max_tokens 0, one choice and no
  // context policy.
  std::vector<std::vector<int32_t>> candidates;
  SamplingParams sampling;
  StoppingParams stopping;
  OutputParams output;
  ConstraintParams constraint;
  // How the text goes on when its context is full; unset: as EngineLimits says. n_ctx and n_discard may be 0
  // for what ContextPolicyOf makes of it.
  std::optional<ContextPolicy> context_policy;
  ShareParams share;
  std::string cache_salt;  // requests share pages only with those of the same salt; any bytes
  // Its pages stay cached while others can go, up to half of the pool: a session goes on from them.
  bool prefers_cache = false;
  // What it leaves when it ends well is this owner's, and it goes on from what the one before it left
  // (KvStore::LeaveIdle). With one choice. Null: nobody's.
  std::shared_ptr<const KvOwner> kv_owner;
  int32_t choices = 1;      // n
  int64_t deadline_ns = 0;  // on the engine's clock; past it: DEADLINE_EXCEEDED. 0: none
  int64_t received_ns = 0;
  int64_t tokenized_ns = 0;
  ArrivalTimes arrival;
  std::shared_ptr<TokenCounts> counted;  // where its tokens are; null: nowhere but in all

  // When its deadline or its limit of time ends it, whichever is first; INT64_MAX where it has neither.
  int64_t OutOfTimeNs() const {
    const int64_t limit_ns = stopping.time_limit_ns;
    const bool is_limited = limit_ns > 0 && received_ns <= INT64_MAX - limit_ns;
    return std::min(deadline_ns > 0 ? deadline_ns : INT64_MAX,
                    is_limited ? received_ns + limit_ns : INT64_MAX);
  }
};

inline constexpr size_t kMaxCacheSaltBytes = 256;

// The request's policy, or that of the limits, with nothing left open: n_ctx becomes the context, n_discard 1
// (kShift) or half of what is not kept (kReevaluate).
ContextPolicy ContextPolicyOf(const Request& request, const EngineLimits& limits);
// The least n_discard under kReevaluate, whose each discard computes what is left anew: with fewer a text
// that goes on would be a prefill a token. 16 discards replace all that is not kept.
inline constexpr int64_t kLeastDiscardPart = 16;
int64_t LeastReevaluatedDiscard(const ContextPolicy& policy);
// That a prompt may have with at least one token of output: without a policy the context, under one
// kMaxContext.
int64_t MostTokens(const ContextPolicy& policy, const EngineLimits& limits);

// The door: an INVALID_ARGUMENT that names the first field at fault, its value and the limit. A prompt that
// leaves no room for one token, and a max_tokens beyond the rest of the context, are refused, never cut.
Status ValidateRequest(const Request& request, const EngineLimits& limits, int32_t vocab_size);

// When things happened to one choice, on the engine's clock in nanoseconds; 0: did not happen.
struct Timings {
  int64_t received_ns = 0;
  int64_t tokenized_ns = 0;
  int64_t admitted_ns = 0;     // left the queue, has a slot
  int64_t first_chunk_ns = 0;  // first prefill step planned
  int64_t last_chunk_ns = 0;   // last prefill step planned
  // The forward pass of the last prefill step before the first token had ended.
  int64_t prefilled_ns = 0;
  int64_t first_token_ns = 0;  // first token collected
  int64_t finished_ns = 0;
  // Not a moment: how long prefill steps before the first token computed it, those too that preemption undid.
  int64_t prefill_run_ns = 0;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;      // prompt tokens whose pages were found, not computed
  int64_t completion_tokens = 0;  // as delivered: up to and with the token that completed a stop
  // That the last row did not see any more; unset where there is no context policy.
  std::optional<int64_t> discarded_tokens;
  int32_t prefill_chunks = 0;
  int32_t preemptions = 0;
};

enum class FinishReason : int32_t {
  kStop = 0,          // eos
  kLength = 1,        // max_tokens or the context
  kStopSequence = 2,  // a stop string or a stop token id
  kTimeLimit = 3,
  kCancelled = 4,
  kError = 5,  // the choice's Status says what
};
inline constexpr size_t kFinishReasons = 6;
inline const char* FinishReasonName(FinishReason reason) {
  constexpr const char* kNames[kFinishReasons] = {"stop",       "length",    "stop_sequence",
                                                  "time_limit", "cancelled", "error"};
  return kNames[static_cast<size_t>(reason)];
}

}  // namespace tramontane
