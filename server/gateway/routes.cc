#include "server/gateway/routes.h"

#include "server/gateway/status_endpoints.h"

namespace tramontane {

const std::vector<Route>& Routes() {
  static const std::vector<Route> routes = {
      {"GET", "/health", AnswerHealth},   {"GET", "/ready", AnswerReady},     {"GET", "/ping", AnswerHealth},
      {"POST", "/ping", AnswerHealth},    {"GET", "/version", AnswerVersion}, {"GET", "/load", AnswerLoad},
      {"GET", "/metrics", AnswerMetrics},
  };
  return routes;
}

}  // namespace tramontane
