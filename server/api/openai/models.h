// GET /v1/models, /v1/models/{model} and /tokenizer_info: what is served. Endpoints: gateway.h.
#pragma once

#include <memory>

#include "server/api/shared/endpoint.h"
#include "server/api/shared/shape.h"

namespace tramontane {

const Shape& ModelShape();
const Shape& ModelListShape();
const Shape& TokenizerInfoShape();

void AnswerModels(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);
void AnswerModel(const GatewayContext& context,
                 const std::shared_ptr<GatewayExchange>& exchange);  // of /models/*
void AnswerTokenizerInfo(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);

}  // namespace tramontane
