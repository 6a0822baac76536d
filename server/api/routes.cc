#include "server/api/routes.h"

#include "server/api/admin/debug_endpoints.h"
#include "server/api/admin/sessions.h"
#include "server/api/admin/status_endpoints.h"
#include "server/api/openai/chat.h"
#include "server/api/openai/completions.h"
#include "server/api/openai/models.h"
#include "server/api/openai/responses.h"
#include "server/api/openai/score.h"
#include "server/api/openai/tokenize.h"
#include "server/api/shared/route_path.h"
#include "server/api/spec.h"

namespace tramontane {
namespace {

bool Matches(const Route& route, std::string_view exact, std::string_view api) {
  const std::string_view path = route.spelling == Spelling::kApi ? api : exact;
  const size_t star = route.path.find('*');
  if (star == std::string_view::npos) return route.path == path;
  return path.size() >= route.path.size() && path.starts_with(route.path.substr(0, star)) &&
         path.ends_with(route.path.substr(star + 1));
}

}  // namespace

const std::vector<Route>& Routes() {
  using enum Spelling;
  using enum AnsweredOn;
  using enum OnDoors;
  using enum Route::What;
  constexpr bool kOpen = true;
  static const std::vector<Route> routes = {
      {"POST", "/chat/completions", AnswerChatCompletions, kGenerates},
      {"POST", "/chat/completions/render", AnswerRenderChat},
      {"POST", "/completions", AnswerCompletions, kGenerates},
      {"POST", "/completions/render", AnswerRenderCompletions},
      {"POST", "/fim/completions", AnswerFillInMiddle, kGenerates},
      {"POST", "/responses", AnswerResponses, kGenerates},
      {"POST", "/score", AnswerScore, kGenerates},
      {"POST", "/tokenize", AnswerTokenize},
      {"POST", "/detokenize", AnswerDetokenize},
      {"GET", "/models", AnswerModels},
      {"GET", "/models/*", AnswerModel},
      {"GET", "/sessions", AnswerSessions},
      {"DELETE", "/sessions/*", AnswerDeleteSession},
      {"POST", "/v1/sessions/*/save", AnswerSaveSession, kOther, kExact},
      {"POST", "/v1/sessions/*/restore", AnswerRestoreSession, kOther, kExact},
      {"GET", "/tokenizer_info", AnswerTokenizerInfo, kOther, kExact},
      {"GET", "/openapi.json", AnswerOpenApi, kOther, kExact},
      {"GET", "/health", AnswerHealth, kOther, kExact, kIoThread, kBoth, kOpen},
      {"GET", "/ready", AnswerReady, kOther, kExact, kIoThread, kBoth, kOpen},
      {"GET", "/ping", AnswerPing, kOther, kExact, kIoThread, kPublic, kOpen},
      {"POST", "/ping", AnswerPing, kOther, kExact, kIoThread, kPublic, kOpen},
      {"GET", "/version", AnswerVersion, kOther, kExact, kIoThread, kPublic, kOpen},
      {"GET", "/load", AnswerLoad, kOther, kExact, kIoThread},
      {"GET", "/metrics", AnswerMetrics, kOther, kExact, kIoThread, kBoth, kOpen},
      {"GET", "/debug/trace", AnswerTrace, kOther, kExact, kIoThread, kAdmin},
      {"GET", "/debug/kv", AnswerKvTables, kOther, kExact, kIoThread, kAdmin},
      {"GET", "/debug/requests", AnswerLiveRequests, kOther, kExact, kIoThread, kAdmin},
  };
  return routes;
}

std::shared_ptr<HttpCounts> NewHttpCounts(const std::vector<Route>& routes) {
  std::vector<HttpCounts::Handler> handlers;
  for (const Route& route : routes) {
    const char* prefix = route.spelling == Spelling::kApi ? "/v1" : "";
    handlers.push_back({route.method, route.path, prefix + std::string(route.path)});
  }
  return std::make_shared<HttpCounts>(handlers);
}

namespace {

bool IsAt(Door door, const Route& route) {
  if (route.doors == OnDoors::kBoth) return true;
  return route.doors == OnDoors::kPublic ? door == Door::kPublic : door == Door::kAdmin;
}

}  // namespace

RouteMatch FindRoute(std::string_view method, std::string_view path, Door door,
                     const std::vector<Route>& routes) {
  RouteMatch match;
  if (EscapesALetter(path)) return match;
  const std::string api = ApiPath(path);
  for (const Route& route : routes) {
    if (!Matches(route, path, api) || !IsAt(door, route)) continue;
    if (match.path.empty()) {
      match.path = route.path;
      match.dialect = route.dialect;
    }
    match.methods.append(match.methods.empty() ? "" : ", ").append(route.method);
    if (route.method == method) match.route = &route;
  }
  return match;
}

}  // namespace tramontane
