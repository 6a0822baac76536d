#include "server/api/openai/request_shapes.h"

#include "server/api/openai/chat.h"
#include "server/api/openai/completions.h"
#include "server/api/openai/responses.h"
#include "server/api/openai/score.h"
#include "server/api/openai/tokenize.h"

namespace tramontane {

RequestShapes::RequestShapes(const FieldLimits& limits)
    : chat(ChatCompletionShape(limits)),
      completion(CompletionShape(limits)),
      responses(ResponsesShape(limits)),
      score(ScoreShape()),
      tokenize(TokenizeShape()),
      detokenize(DetokenizeShape()) {}

const RequestShapes& StandardShapes() {
  static const RequestShapes shapes{FieldLimits()};
  return shapes;
}

}  // namespace tramontane
