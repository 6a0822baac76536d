// What a sampling call is given: one record per row of logits, and what comes back.
//
// A token is the winner of an exponential race: among the candidates left by the filters, the one with the
// least E_t / w_t, where w_t = exp((logit_t - max) / temperature) and E_t is an exponential random number
// that depends on (seed, choice, position, token id) only (RaceUniform below). Token t wins with probability
// proportional to w_t (Gumbel's trick), needs no sorted cumulative sum, and is the same in any order of
// evaluation. Ties go to the lower token id.
//
// Order of the steps: logprobs are taken from the raw logits (log softmax, before anything below); then for
// every LogitAdjust of the row: repetition penalty (in_context), minus frequency * output_count, minus
// presence if output_count > 0, plus bias; then the grammar mask; then temperature (0: the highest logit
// wins, no race); then the filters top_k, top_p (over what top_k left, the crossing token stays), min_p
// (against the highest probability). Adjusted logits are f32, rounded after each step. The filters sort by
// adjusted logit, equal ones by token id, so top_k leaves exactly k. A token with logit -inf is never chosen.
// A row with a NaN or +inf logit, or with no candidate left, chooses nothing and is flagged.
//
// Plain structs; they cross the library border of a backend.
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"

namespace tramontane {

inline constexpr int32_t kMaxTopLogprobs = 20;

// A change to one logit of one row. Entries of a row name each token once, in any order.
struct LogitAdjust {
  int32_t token = 0;
  float bias = 0.0f;         // added; -inf bans
  int32_t output_count = 0;  // times generated so far
  int32_t in_context = 0;    // 1: stands in the prompt or output, so the repetition penalty applies
};

struct SamplingRow {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;        // (0, 1]
  float min_p = 0.0f;        // [0, 1]
  int32_t top_k = 0;         // 0: all
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t choice = 0;  // key of the race, with seed and position
  uint64_t seed = 0;
  int64_t position = 0;       // absolute position of the token that is chosen
  int32_t forced_token = -1;  // >= 0: choose nothing, report this token's logprob and rank
  int32_t top_logprobs = 0;   // 0..kMaxTopLogprobs highest (token, logprob) pairs wanted
  int32_t adjust_begin = 0;   // this row's LogitAdjusts: [adjust_begin, adjust_end)
  int32_t adjust_end = 0;
  int32_t mask_row = -1;  // row of SampleParams::masks, -1: none
  // 0: nobody reads the record's logprob and rank, which are 0 then, unless top_logprobs are asked for.
  int32_t wants_logprob = 1;

  constexpr bool NeedsLogprob() const { return wants_logprob != 0 || top_logprobs > 0; }
};

struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0.0f;
};

struct SampleRecord {
  int32_t token = -1;     // the chosen (or forced) token; -1 when flagged
  float logprob = 0.0f;   // of that token, from the raw logits, where it is wanted
  int32_t rank = 0;       // tokens with a higher raw logit, plus one, where it is wanted
  int32_t failed = 0;     // 1: NaN or +inf among the logits, or no candidate
  int32_t top_count = 0;  // entries written to this row's `top`
};

struct SampleParams {
  Tensor logits;  // [rows, vocab] f32; left as they were. What a longer row has behind is forced at most
  const SamplingRow* rows = nullptr;     // [rows]
  const LogitAdjust* adjusts = nullptr;  // see SamplingRow::adjust_begin
  const uint32_t* masks = nullptr;       // [mask rows, ceil(vocab / 32)] bit set: allowed
  SampleRecord* records = nullptr;       // [rows]
  TokenLogprob* top = nullptr;           // [rows, kMaxTopLogprobs] highest first; null when no row asks
};

// Hands tokens that were just sampled to the next step, before the host has seen them.
struct AdvanceParams {
  const SampleRecord* records = nullptr;  // of the step before
  // [count, 2] (from, to): token_ids[to] = records[from].token, or 0 where that row failed. No `to` twice.
  const int32_t* pairs = nullptr;
  int32_t count = 0;
  int32_t* token_ids = nullptr;
};

// Philox-style counter hash: 64 bits that depend on the key only.
// Source of the idea: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011); mixing constants
// of splitmix64 (Steele, Lea, Flood 2014).
inline constexpr uint64_t kRaceMix1 = 0xbf58476d1ce4e5b9ull;
inline constexpr uint64_t kRaceMix2 = 0x94d049bb133111ebull;
inline constexpr uint64_t kRaceToken = 0xd1342543de82ef95ull;
constexpr uint64_t RaceMix(uint64_t z) {
  z = (z ^ (z >> 30)) * kRaceMix1;
  z = (z ^ (z >> 27)) * kRaceMix2;
  return z ^ (z >> 31);
}
// What the bits of all tokens of a row begin with.
constexpr uint64_t RaceState(uint64_t seed, int32_t choice, int64_t position) {
  const uint64_t state = RaceMix(seed + 0x9e3779b97f4a7c15ull);
  return RaceMix(state ^
                 (static_cast<uint64_t>(position) * 0x9e3779b97f4a7c15ull + static_cast<uint32_t>(choice)));
}
constexpr uint64_t RaceBits(uint64_t seed, int32_t choice, int64_t position, int32_t token) {
  return RaceMix(RaceState(seed, choice, position) ^
                 (static_cast<uint64_t>(static_cast<uint32_t>(token)) * kRaceToken + 1));
}

// v in (0, 1), uniform, exact in double. The token's exponential is E = -log1p(-v). Since E >= v, a token
// with v / w above the best E / w so far cannot win and needs no logarithm.
constexpr double UniformOfBits(uint64_t bits) { return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52; }
constexpr double RaceUniform(uint64_t seed, int32_t choice, int64_t position, int32_t token) {
  return UniformOfBits(RaceBits(seed, choice, position, token));
}

}  // namespace tramontane
