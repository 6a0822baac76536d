#include "server/api/admin/sessions.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/shared/api_error.h"
#include "server/api/shared/field_rows.h"
#include "server/api/shared/gateway_context.h"
#include "server/api/shared/generation_request.h"
#include "server/api/shared/route_path.h"
#include "server/call/inference_client.h"

namespace tramontane {

const Shape& SessionListShape() {
  static const Shape session =
      Object({Always("name", String(1)), Always("object", OneOfStrings({"session"})),
              Always("tokens", Integer(0), "Of prompt and output."),
              Always("messages", Integer(0), "Of a chat, the answers included; else 0."),
              Always("in_use", Boolean(), "By a request; another one is refused."),
              Always("created", Integer(0)), Always("last_used", Integer(0))});
  static const Shape shape =
      Object({Always("object", OneOfStrings({"list"})), Always("data", ArrayOf(session))});
  return shape;
}

const Shape& SessionDeletedShape() {
  static const Shape shape = Object(
      {Always("name", String(1)), Always("object", OneOfStrings({"session"})), Always("deleted", Boolean())});
  return shape;
}

namespace {

std::vector<Field> SessionInFileFields() {
  return {Always("name", String(1)), Always("object", OneOfStrings({"session"})),
          Always("tokens", Integer(0)), Always("messages", Integer(0))};
}

}  // namespace

const Shape& SessionSavedShape() {
  static const Shape shape = Object(
      SessionInFileFields() +
      std::vector<Field>{Always("bytes", Integer(0), "Of the file."),
                         Always("kv_tokens", Integer(0), "First tokens whose keys and values it holds.")});
  return shape;
}

const Shape& SessionRestoredShape() {
  static const Shape shape =
      Object(SessionInFileFields() +
             std::vector<Field>{Always("kv_tokens", Integer(0), "First tokens that need no computing now.")});
  return shape;
}

namespace {

constexpr int64_t kMaxCacheSaltBytes = 256;

// Of a body, which need not be there.
const Shape& SessionRequestShape() {
  static const Shape shape =
      ClosedObject({{.name = "cache_salt",
                     .shape = String(0, kMaxCacheSaltBytes),
                     .doc = "That of the session, where it has one; or in the query."}});
  return shape;
}

// Which session is meant, in any of their requests; or why the request is at fault.
template <typename Request>
std::optional<ApiError> ReadSession(const GatewayContext& context, const HttpExchange& exchange,
                                    std::string_view route_path, Request* request) {
  const HttpRequest& http = exchange.request();
  request->set_name(WildcardOf(route_path, http.path));
  request->set_cache_salt(QueryValueOf(http.target, "cache_salt"));
  if (http.body.empty()) return std::nullopt;
  Json json;
  std::vector<std::string> ignored;
  const RequestContext body_context = RequestContextOf(context, exchange);
  if (auto fault = ParseBody(http.body, SessionRequestShape(), body_context, &json, &ignored)) return fault;
  if (Find(json, "cache_salt") != nullptr) request->set_cache_salt(TextOf(json, "cache_salt"));
  return std::nullopt;
}

}  // namespace

void AnswerSessions(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  context.client.Ask(CallerOf(*exchange), v1::ListSessionsRequest(),
                     [exchange](const RpcError& error, const v1::ListSessionsResponse& list) {
                       if (!error.ok()) return exchange->Fail(ToApiError(error));
                       Json data = Json::array();
                       for (const v1::Session& session : list.sessions()) {
                         data.push_back({{"name", session.name()},
                                         {"object", "session"},
                                         {"tokens", session.tokens()},
                                         {"messages", session.messages()},
                                         {"in_use", session.in_use()},
                                         {"created", session.created_s()},
                                         {"last_used", session.last_used_s()}});
                       }
                       RespondWith(*exchange, {{"object", "list"}, {"data", std::move(data)}});
                     });
}

void AnswerDeleteSession(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  v1::DeleteSessionRequest request;
  if (auto fault = ReadSession(context, *exchange, "/sessions/*", &request)) {
    return exchange->Fail(*fault);
  }
  context.client.Ask(
      CallerOf(*exchange), request,
      [exchange, name = request.name()](const RpcError& error, const v1::DeleteSessionResponse&) {
        if (!error.ok()) return exchange->Fail(ToApiError(error));
        RespondWith(*exchange, {{"name", name}, {"object", "session"}, {"deleted", true}});
      });
}

namespace {

Json SessionInFileJson(const v1::Session& session) {
  return {{"name", session.name()},
          {"object", "session"},
          {"tokens", session.tokens()},
          {"messages", session.messages()}};
}

}  // namespace

void AnswerSaveSession(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  v1::SaveSessionRequest request;
  if (auto fault = ReadSession(context, *exchange, "/sessions/*/save", &request)) {
    return exchange->Fail(*fault);
  }
  context.client.Ask(CallerOf(*exchange), request,
                     [exchange](const RpcError& error, const v1::SaveSessionResponse& saved) {
                       if (!error.ok()) return exchange->Fail(ToApiError(error));
                       Json json = SessionInFileJson(saved.session());
                       json["bytes"] = saved.bytes();
                       json["kv_tokens"] = saved.kv_tokens();
                       RespondWith(*exchange, json);
                     });
}

void AnswerRestoreSession(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  v1::RestoreSessionRequest request;
  if (auto fault = ReadSession(context, *exchange, "/sessions/*/restore", &request)) {
    return exchange->Fail(*fault);
  }
  context.client.Ask(CallerOf(*exchange), request,
                     [exchange](const RpcError& error, const v1::RestoreSessionResponse& restored) {
                       if (!error.ok()) return exchange->Fail(ToApiError(error));
                       Json json = SessionInFileJson(restored.session());
                       json["kv_tokens"] = restored.kv_tokens();
                       RespondWith(*exchange, json);
                     });
}

}  // namespace tramontane
