#include "engine/schedule/prefill_share.h"

#include <algorithm>
#include <limits>

namespace tramontane {
namespace {

// Keys that a row of the sequence sees at most.
int64_t MostKeys(const Sequence& sequence) {
  return std::min(sequence.lease().plain_len == INT64_MAX ? kMaxContext : sequence.lease().policy.n_ctx,
                  kMaxContext);
}

}  // namespace

PrefillShare::PrefillShare(const EngineLimits& limits, const KvStore& store, const StepCosts& costs)
    : limits_(limits), store_(store), costs_(costs), cost_(store.layout(), limits.attended_keys_per_token) {}

// Beside decode a step takes what fits between two decode steps, but never fewer tokens than
// least_step_tokens. As long as no step was timed it takes those. Held sequences decode, too: they go on as
// soon as their masks are there.
PrefillBudget PrefillShare::OfStep(const std::vector<Sequence*>& prompts,
                                   const std::vector<Sequence*>& decode) const {
  PrefillBudget budget = {limits_.max_step_tokens, limits_.step_cost() * cost_.parts_per_token(),
                          std::numeric_limits<double>::infinity(), limits_.step_scores()};
  const bool is_timed = limits_.decode_gap_ns > 0 && limits_.lane_policy == LanePolicy::kFair;
  const auto decodes = [](const Sequence* sequence) { return sequence->decode_left(); };
  if (!is_timed || std::none_of(decode.begin(), decode.end(), decodes)) return budget;
  if (!costs_.prefill.known()) {
    budget.tokens = std::clamp<int64_t>(limits_.least_step_tokens, 1, budget.tokens);
    return budget;
  }
  const double between_ns = static_cast<double>(limits_.decode_gap_ns) - DecodeStepNs(decode);
  budget.ns =
      std::max(between_ns / limits_.max_prefill_steps - costs_.prefill.fixed_ns(), LeastStepNs(prompts));
  return budget;
}

double PrefillShare::DecodeStepNs(const std::vector<Sequence*>& decode) const {
  StepWork work;
  for (const Sequence* sequence : decode) {
    if (!sequence->decode_left()) continue;
    ++work.tokens;
    work.attended_keys += AttendedKeys(*sequence, sequence->scheduled_len(), sequence->scheduled_len() + 1);
  }
  return costs_.decode.Ns(work);
}

// The time of least_step_tokens tokens of whichever prompt they take longest in, and a shade more, so that
// sharing it out in fractions loses none of them.
double PrefillShare::LeastStepNs(const std::vector<Sequence*>& prompts) const {
  const int64_t tokens = std::clamp<int64_t>(limits_.least_step_tokens, 1, limits_.max_step_tokens);
  double most_ns = ChunkNs(tokens, cost_.AttendedKeys(0, tokens));
  for (const Sequence* sequence : prompts) {
    const int64_t begin = sequence->scheduled_len();
    most_ns = std::max(most_ns, ChunkNs(tokens, AttendedKeys(*sequence, begin, begin + tokens)));
  }
  return most_ns * (1 + 1e-9);
}

double PrefillShare::ChunkNs(int64_t tokens, int64_t keys) const {
  const double keys_ns = costs_.prefill.key_ns() * static_cast<double>(keys);
  return costs_.prefill.token_ns() * static_cast<double>(tokens) + keys_ns;
}

int64_t PrefillShare::AttendedKeys(const Sequence& sequence, int64_t begin, int64_t end) const {
  return cost_.AttendedKeys(begin, end, MostKeys(sequence));
}

PrefillBudget PrefillShare::ChunkOf(const Sequence& sequence, int64_t begin, int64_t end) const {
  const int64_t keys = AttendedKeys(sequence, begin, end);
  return {.tokens = end - begin,
          .parts = (end - begin) * cost_.parts_per_token() + keys,
          .ns = ChunkNs(end - begin, keys),
          .scores = sequence.ScoresBefore(end) - sequence.ScoresBefore(begin)};
}

int64_t PrefillShare::LongestChunk(const Sequence& sequence, const PrefillBudget& share,
                                   int64_t pages) const {
  const int64_t start = sequence.next_position();
  const auto fits = [&](int64_t count) {
    return share.Holds(ChunkOf(sequence, start, start + count)) &&
           store_.PagesNeeded(sequence.lease(), start, start + count) <= pages;
  };
  int64_t most = std::min(sequence.prefill_len() - start, share.tokens);
  if (most <= 0 || fits(most)) return std::max<int64_t>(most, 0);
  int64_t count = 0;
  while (most - count > 1) {
    const int64_t middle = count + (most - count) / 2;
    (fits(middle) ? count : most) = middle;
  }
  return count;
}

int64_t PrefillShare::RemainingParts(const Sequence& sequence) const {
  return cost_.Parts(sequence.next_position(), sequence.prefill_len(), MostKeys(sequence));
}

bool PrefillShare::FitsOneChunk(const Sequence& sequence) const {
  return sequence.prefill_len() - sequence.next_position() <= limits_.max_step_tokens / 2 &&
         RemainingParts(sequence) <= limits_.step_cost() * cost_.parts_per_token() / 2;
}

}  // namespace tramontane
