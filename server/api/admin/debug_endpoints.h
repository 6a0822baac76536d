// Endpoints for whoever looks into the server. There only where GatewayOptions::trace is, else 404.
#pragma once

#include <cstdint>
#include <memory>

#include "server/api/shared/gateway_context.h"

namespace tramontane {

inline constexpr int64_t kMostTraceSeconds = 60;

// GET /debug/trace?seconds=N: the steps and requests that end within so many seconds from now, as Chrome's
// trace events, sent as they come. N is above 0 and at most kMostTraceSeconds, whole or not. On an io thread;
// the answer ends on one too.
void AnswerTrace(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);

inline constexpr int64_t kMostPendingSeconds = 60;

// GET /debug/kv: the page tables of the sequences that run, as the engine tells them when its next step
// begins; looked for about twice a second. 503 when there is no answer after kMostPendingSeconds. On an io
// thread; the answer leaves on one too.
void AnswerKvTables(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);

// GET /debug/requests: every request that is open, in the same way: whose, how old, how far. Nothing of what
// it says.
void AnswerLiveRequests(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);

}  // namespace tramontane
