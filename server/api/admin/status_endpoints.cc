#include "server/api/admin/status_endpoints.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "server/api/shared/api_error.h"
#include "server/api/shared/endpoint.h"

namespace tramontane {
namespace {

HttpResponse JsonResponse(const nlohmann::ordered_json& body) {
  HttpResponse response;
  response.body = body.dump();
  return response;
}

}  // namespace

void AnswerPing(const GatewayContext&, const std::shared_ptr<GatewayExchange>& exchange) {
  HttpResponse response;
  response.content_type = "";
  exchange->Respond(std::move(response));
}

void AnswerHealth(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  const RpcError fault = context.client.health();
  if (fault.ok()) return AnswerPing(context, exchange);
  ApiError error = ToApiError(fault);
  error.status = 503;  // whatever it is: send nobody here
  exchange->Fail(error);
}

void AnswerReady(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  if (context.client.ready() && !context.leaving) return AnswerPing(context, exchange);
  ApiError error;
  error.status = 503;
  error.type = "service_unavailable";
  error.code = "not_ready";
  error.message = "no request is taken now: the model is loading or the server is draining";
  exchange->Fail(error);
}

void AnswerVersion(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  exchange->Respond(JsonResponse({{"version", context.options.version}}));
}

void AnswerLoad(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  context.client.Ask(CallerOf(*exchange), v1::GetLoadRequest(),
                     [exchange](const RpcError& error, const v1::GetLoadResponse& load) {
                       if (!error.ok()) return exchange->Fail(ToApiError(error));
                       exchange->Respond(JsonResponse({{"server_load", load.open_streams()}}));
                     });
}

void AnswerMetrics(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange) {
  ApiError error;
  error.status = 404;
  error.message = "this server keeps no metrics";
  if (context.options.metrics == nullptr) return exchange->Fail(error);
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = context.options.metrics();
  if (context.options.http_counts != nullptr) response.body += context.options.http_counts->Text();
  exchange->Respond(std::move(response));
}

}  // namespace tramontane
