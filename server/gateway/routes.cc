#include "server/gateway/routes.h"

#include "server/gateway/openai_endpoints.h"
#include "server/gateway/status_endpoints.h"

namespace tramontane {

const std::vector<Route>& Routes() {
  static const std::vector<Route> routes = {
      {"POST", "/chat/completions", AnswerChatCompletions},
      {"POST", "/chat/completions/render", AnswerRenderChat},
      {"POST", "/completions", AnswerCompletions},
      {"POST", "/completions/render", AnswerRenderCompletions},
      {"POST", "/responses", AnswerResponses},
      {"POST", "/tokenize", AnswerTokenize},
      {"POST", "/detokenize", AnswerDetokenize},
      {"GET", "/models", AnswerModels},
      {"GET", "/models/*", AnswerModel},
      {"GET", "/tokenizer_info", AnswerTokenizerInfo},
      {"GET", "/openapi.json", AnswerOpenApi},
      {"GET", "/health", AnswerHealth},
      {"GET", "/ready", AnswerReady},
      {"GET", "/ping", AnswerHealth},
      {"POST", "/ping", AnswerHealth},
      {"GET", "/version", AnswerVersion},
      {"GET", "/load", AnswerLoad},
      {"GET", "/metrics", AnswerMetrics},
  };
  return routes;
}

}  // namespace tramontane
