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
#include "models/model_folder.h"

namespace tramontane {

// Loads the folder's weights into the backend. options.kv's shape is filled in.
StatusOr<std::unique_ptr<Model>> MakeMistral(const ModelFolder& folder, ModelConfig config, Backend& backend,
                                             const LoadOptions& options);

// Bytes of the activation buffers for steps of up to `max_tokens`. Pure.
int64_t MistralActivationBytes(const ModelConfig& config, DType activation_dtype, int32_t max_tokens);

}  // namespace tramontane
