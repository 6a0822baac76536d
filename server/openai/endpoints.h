// OpenAI's endpoints and vLLM's beside them: each reads the body, asks the InferenceClient and writes the
// answer. As every Endpoint (gateway.h): called on a handler thread.
#pragma once

#include <memory>

#include "server/openai/gateway.h"
#include "server/openai/generation_request.h"

namespace tramontane {

void AnswerChatCompletions(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange);
void AnswerCompletions(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange);
void AnswerResponses(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange);
// The prompts of such requests as token ids; nothing is generated.
void AnswerRenderChat(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange);
void AnswerRenderCompletions(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange);

void AnswerModels(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange);
void AnswerModel(const GatewayContext& context,
                 const std::shared_ptr<HttpExchange>& exchange);  // of /models/*
void AnswerTokenize(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange);
void AnswerDetokenize(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange);
void AnswerOpenApi(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange);
void AnswerTokenizerInfo(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange);

// For endpoints elsewhere.
RequestContext RequestContextOf(const GatewayContext& context, const HttpExchange& exchange);

}  // namespace tramontane
