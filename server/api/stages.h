// Stages: what every request passes before its endpoint, in one order for all of them. A check that concerns
// every endpoint is a row of the table in stages.cc.
// On the connection's io thread: none waits, none reads a body.
#pragma once

#include <optional>
#include <vector>

#include "server/api/routes.h"
#include "server/api/shared/gateway_context.h"
#include "server/call/caller.h"
#include "server/http/http.h"

namespace tramontane {

// What the stages look at.
struct Arrival {
  const HttpRequest& request;
  const RouteMatch& match;
  const GatewayOptions& options;
  bool draining = false;
};

// The answer of the first stage that ends the request; nothing: its endpoint may have it.
std::optional<HttpResponse> PassStages(const Arrival& arrival);

// Once the header is whole: who asks, and the answer where they may not. What an earlier stage refuses is
// asked for no key.
std::optional<HttpResponse> IdentifyCaller(const Arrival& arrival, Caller* caller);

// What pages of other origins are told about an answer, where the one that asks may read it.
HttpHeaders CorsHeaders(const GatewayOptions& options, const HttpRequest& request);

}  // namespace tramontane
