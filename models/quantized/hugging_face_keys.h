// A model's config as a config.json, for a model that has none: that of a GGUF file.
// Any thread; pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kernels/core/status.h"
#include "models/model_config.h"

namespace tramontane {

// `where` names the model in errors. UNIMPLEMENTED names what the keys cannot say; what is returned was read
// back and computes the same. dtype: that of the weights that are not quantised.
StatusOr<nlohmann::json> MakeHuggingFaceConfig(const ModelConfig& config, DType dtype,
                                               const std::string& where);

}  // namespace tramontane
