// RequestShapes: the shape of every request body, for one server's limits.
// Built once; any thread.
#pragma once

#include "server/api/shared/generation_request.h"
#include "server/api/shared/shape.h"
#include "server/call/field_limits.h"

namespace tramontane {

struct RequestShapes {
  explicit RequestShapes(const FieldLimits& limits);

  Shape chat;        // POST /v1/chat/completions, and its /render
  Shape completion;  // POST /v1/completions, and its /render
  Shape responses;   // POST /v1/responses
  Shape score;       // POST /v1/score
  Shape tokenize;    // POST /tokenize
  Shape detokenize;  // POST /detokenize
};

// Of FieldLimits as built.
const RequestShapes& StandardShapes();
// Those that a request is checked against.
inline const RequestShapes& ShapesOf(const RequestContext& context) {
  return context.shapes != nullptr ? *context.shapes : StandardShapes();
}

}  // namespace tramontane
