// The explicit table: architecture -> who makes it and what it takes. Adding an architecture is a row here, a
// row in model_config.cc and its file. Loading thread; constants.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "models/mistral.h"

namespace tramontane {

struct ModelMaker {
  const char* architecture;
  StatusOr<std::unique_ptr<Model>> (*make)(const ModelFolder&, ModelConfig, Backend&, const LoadOptions&);
  int64_t (*activation_bytes)(const ModelConfig&, DType activation_dtype, int32_t max_tokens);
};

// Null for an architecture without a row.
const ModelMaker* FindModelMaker(const std::string& architecture);

}  // namespace tramontane
