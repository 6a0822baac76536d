// RequestShapes: the shape of every request body, for one server's limits.
// Built once; any thread.
#pragma once

#include "server/core/field_limits.h"
#include "server/openai/shape.h"

namespace tramontane {

struct RequestShapes {
  explicit RequestShapes(const FieldLimits& limits);

  Shape chat;        // POST /v1/chat/completions, and its /render
  Shape completion;  // POST /v1/completions, and its /render
  Shape responses;   // POST /v1/responses
  Shape tokenize;    // POST /tokenize
  Shape detokenize;  // POST /detokenize
};

// Of FieldLimits as built.
const RequestShapes& StandardShapes();

}  // namespace tramontane
