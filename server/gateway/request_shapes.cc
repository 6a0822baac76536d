#include "server/gateway/request_shapes.h"

#include "server/gateway/openai_fields.h"
#include "server/gateway/openai_responses.h"

namespace tramontane {

RequestShapes::RequestShapes(const FieldLimits& limits)
    : chat(ChatCompletionShape(limits)),
      completion(CompletionShape(limits)),
      responses(ResponsesShape(limits)),
      tokenize(TokenizeShape()),
      detokenize(DetokenizeShape()) {}

const RequestShapes& StandardShapes() {
  static const RequestShapes shapes{FieldLimits()};
  return shapes;
}

}  // namespace tramontane
