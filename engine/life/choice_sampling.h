// What a choice brings to the sampler in a step, and why the sampler gave it no token. Engine thread.
#pragma once

#include <cstdint>

#include "engine/life/live_request.h"
#include "engine/run/model_runner.h"
#include "kernels/core/status.h"

namespace tramontane {

// All but its history and its mask. `position`: of the token that is drawn, in the whole text.
void FillSamplingRow(const LiveRequest& live, int32_t choice, int64_t position, SamplingRow* row);

// The model's fault: INTERNAL.
Status NotFinite();
// Or that of a constraint that allows no token where the choice may not end yet: INVALID_ARGUMENT.
Status WhyNoToken(const LiveChoice& choice);

}  // namespace tramontane
