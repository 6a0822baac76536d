// The decoder of Mistral and Llama: RMSNorm, grouped-query attention with rotary embeddings and an optional
// window per layer, SwiGLU. All architectures of the table are this one. Loading thread for the makers,
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

// Loads the weights into the backend and lets go of the files.
StatusOr<std::unique_ptr<Model>> MakeMistral(OpenedModel opened, Backend& backend,
                                             const LoadProgress& progress);

// Bytes of the activation buffers for steps of up to `max_tokens`. Pure.
int64_t MistralActivationBytes(const ModelConfig& config, DType activation_dtype, int32_t max_tokens);

}  // namespace tramontane
