// The decoder: an embedding, layers of blocks around a residual stream, a norm and the logits' matrix. All
// architectures of the table are this one with their own blocks. Loading thread; the model belongs to the
// engine thread afterwards.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/backend.h"
#include "kernels/core/status.h"
#include "models/model.h"
#include "models/model_config.h"
#include "models/opened_model.h"

namespace tramontane {

// Packs the weights into the backend and lets go of the files. Errors name file and tensor.
StatusOr<std::unique_ptr<Model>> LoadModel(OpenedModel opened, Backend& backend,
                                           const LoadProgress& progress);

// Bytes of the activation buffers for steps of up to `max_tokens`. Pure.
int64_t ActivationBytes(const ModelConfig& config, DType activation_dtype, int32_t max_tokens);

}  // namespace tramontane
