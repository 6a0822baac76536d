// GET /v1/sessions, DELETE /v1/sessions/{name} and POST .../{name}/save and /restore: what is kept of
// conversations. Endpoints: gateway.h.
#pragma once

#include <memory>

#include "server/api/shared/endpoint.h"
#include "server/api/shared/shape.h"

namespace tramontane {

const Shape& SessionListShape();
const Shape& SessionDeletedShape();
const Shape& SessionSavedShape();
const Shape& SessionRestoredShape();

void AnswerSessions(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);
void AnswerDeleteSession(const GatewayContext& context,
                         const std::shared_ptr<GatewayExchange>& exchange);  // of /sessions/*
void AnswerSaveSession(const GatewayContext& context,
                       const std::shared_ptr<GatewayExchange>& exchange);  // of /sessions/*/save
void AnswerRestoreSession(const GatewayContext& context,
                          const std::shared_ptr<GatewayExchange>& exchange);  // of /sessions/*/restore

}  // namespace tramontane
