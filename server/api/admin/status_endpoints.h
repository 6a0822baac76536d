// Endpoints about the server itself. On an io thread: none waits for anything.
#pragma once

#include <memory>

#include "server/api/shared/gateway_context.h"

namespace tramontane {

// The process answers: 200 without a body.
void AnswerPing(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);
// Requests that are here go on: 200 without a body, also while draining; 503 until the model stands, and when
// the engine does.
void AnswerHealth(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);
// A request would be taken now: 200, else 503.
void AnswerReady(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);
// {"version": "0.1.0"}
void AnswerVersion(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);
// {"server_load": requests in progress}
void AnswerLoad(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);
// Prometheus text.
void AnswerMetrics(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);

}  // namespace tramontane
