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
  StatusOr<std::unique_ptr<Model>> (*make)(OpenedModel, Backend&, const LoadProgress&);
  int64_t (*activation_bytes)(const ModelConfig&, DType activation_dtype, int32_t max_tokens);
};

// Null for an architecture without a row.
const ModelMaker* FindModelMaker(const std::string& architecture);

// Packs the weights of an opened model (mapped, checked, packed, unmapped). Errors name file and tensor.
StatusOr<std::unique_ptr<Model>> LoadModel(OpenedModel opened, Backend& backend,
                                           const LoadProgress& progress);

}  // namespace tramontane
