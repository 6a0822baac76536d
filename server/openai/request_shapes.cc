#include "server/openai/request_shapes.h"

#include "server/openai/chat.h"
#include "server/openai/completions.h"
#include "server/openai/responses.h"
#include "server/openai/tokenize.h"

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
