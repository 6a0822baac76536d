#include "server/openai/request_shapes.h"

#include "server/openai/fields.h"
#include "server/openai/responses.h"

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
