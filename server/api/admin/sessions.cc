#include "server/api/admin/sessions.h"

#include <string>
#include <utility>
#include <vector>

#include "server/api/shared/api_error.h"
#include "server/api/shared/field_rows.h"
#include "server/api/shared/gateway_context.h"
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

void AnswerSessions(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange) {
  context.client.Ask(CallerOf(*exchange), v1::ListSessionsRequest(),
                     [exchange](const RpcError& error, const v1::ListSessionsResponse& list) {
                       if (!error.ok()) return exchange->Respond(ErrorResponse(ToApiError(error)));
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

void AnswerDeleteSession(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange) {
  const std::string name = WildcardOf("/sessions/*", exchange->request().path);
  v1::DeleteSessionRequest request;
  request.set_name(name);
  context.client.Ask(CallerOf(*exchange), request,
                     [exchange, name](const RpcError& error, const v1::DeleteSessionResponse&) {
                       if (!error.ok()) return exchange->Respond(ErrorResponse(ToApiError(error)));
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

void AnswerSaveSession(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange) {
  v1::SaveSessionRequest request;
  request.set_name(WildcardOf("/sessions/*/save", exchange->request().path));
  context.client.Ask(CallerOf(*exchange), request,
                     [exchange](const RpcError& error, const v1::SaveSessionResponse& saved) {
                       if (!error.ok()) return exchange->Respond(ErrorResponse(ToApiError(error)));
                       Json json = SessionInFileJson(saved.session());
                       json["bytes"] = saved.bytes();
                       json["kv_tokens"] = saved.kv_tokens();
                       RespondWith(*exchange, json);
                     });
}

void AnswerRestoreSession(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange) {
  v1::RestoreSessionRequest request;
  request.set_name(WildcardOf("/sessions/*/restore", exchange->request().path));
  context.client.Ask(CallerOf(*exchange), request,
                     [exchange](const RpcError& error, const v1::RestoreSessionResponse& restored) {
                       if (!error.ok()) return exchange->Respond(ErrorResponse(ToApiError(error)));
                       Json json = SessionInFileJson(restored.session());
                       json["kv_tokens"] = restored.kv_tokens();
                       RespondWith(*exchange, json);
                     });
}

}  // namespace tramontane
