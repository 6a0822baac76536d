#include "engine/life/choice_sampling.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <span>
#include <string>

#include "engine/life/constrain/mask_waits.h"

namespace tramontane {
namespace {

// Whether a token is allowed that the adjustments do not ban.
bool AllowsAny(std::span<const uint32_t> mask, std::span<const LogitAdjust> adjusts) {
  int64_t allowed = 0;
  for (const uint32_t word : mask) allowed += std::popcount(word);
  for (const LogitAdjust& adjust : adjusts) {
    const bool banned = adjust.bias == -std::numeric_limits<float>::infinity();
    if (banned && MaskAllows(mask, adjust.token)) --allowed;
  }
  return allowed > 0;
}

}  // namespace

void FillSamplingRow(const LiveRequest& live, int32_t choice, int64_t position, SamplingRow* row) {
  const SamplingParams& sampling = live.request.sampling;
  row->temperature = sampling.temperature;
  row->top_p = sampling.top_p;
  row->min_p = sampling.min_p;
  row->top_k = std::max(sampling.top_k, 0);
  row->repetition_penalty = sampling.repetition_penalty;
  row->presence_penalty = sampling.presence_penalty;
  row->frequency_penalty = sampling.frequency_penalty;
  row->choice = choice;
  row->seed = live.seed;
  row->position = position;
  row->top_logprobs = std::max(live.request.output.logprobs, 0);
  row->wants_logprob = live.request.output.logprobs >= 0 ? 1 : 0;
}

Status NotFinite() { return Internal("the model's logits are not finite"); }

Status WhyNoToken(const LiveChoice& choice) {
  if (choice.constraint == nullptr || AllowsAny(MaskOf(choice), choice.history->adjusts()))
    return NotFinite();
  const StoppingParams& stopping = choice.request->stopping;
  // What it allows is the end alone, and that is banned until then.
  if (AllowsAny(MaskOf(choice), {})) {
    return InvalidArgument(
               "is " + std::to_string(stopping.min_tokens) +
               ", but the text that the constraint allows is whole before and can neither end nor go on")
        .WithField("stopping.min_tokens", FieldForm::kSubject);
  }
  return InvalidArgument("allows no token here: the vocabulary cannot go on with the text")
      .WithField("constraint", FieldForm::kSubject);
}

}  // namespace tramontane
