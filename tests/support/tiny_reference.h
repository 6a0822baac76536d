// What a decoder in double precision makes of a text, beside what an engine has said of it. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/context_policy.h"
#include "kernels/core/dtype.h"
#include "tests/reference/mistral_reference.h"
#include "tests/support/tiny_model.h"

namespace tramontane {

// The model's weights as its file has them, rounded where its tensors are. REQUIRES: no experts.
reference::MistralWeights ReferenceWeightsOf(const TinyModel& model);

// With all numbers given: ContextPolicyOf.
reference::ContextRule ReferenceRuleOf(const ContextPolicy& policy);

// Rows as pages of that type hold them, a head being one group. Null for kF32.
reference::RowRounding ReferenceRoundingOf(DType kv_dtype);

// [tokens, vocab] logits of the token after each of the text's.
std::vector<std::vector<double>> LogitsAlong(reference::Mistral decoder, const std::vector<int32_t>& text);

}  // namespace tramontane
