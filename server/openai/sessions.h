// GET /v1/sessions and DELETE /v1/sessions/{name}: what is kept of conversations. Endpoints: gateway.h.
#pragma once

#include <memory>

#include "server/openai/endpoint.h"
#include "server/openai/shape.h"

namespace tramontane {

const Shape& SessionListShape();
const Shape& SessionDeletedShape();

void AnswerSessions(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange);
void AnswerDeleteSession(const GatewayContext& context,
                         const std::shared_ptr<HttpExchange>& exchange);  // of /sessions/*

}  // namespace tramontane
