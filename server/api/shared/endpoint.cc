#include "server/api/shared/endpoint.h"

#include <chrono>
#include <utility>

#include "server/api/shared/api_error.h"
#include "server/api/shared/gateway_context.h"
#include "server/api/shared/timing.h"
#include "server/base/peer_address.h"

namespace tramontane {
namespace {

constexpr char kIgnoredHeader[] = "x-tramontane-ignored";

// A key is whatever a client sent; a header is not.
std::string HeaderText(const std::string& key) {
  std::string text = key;
  for (char& c : text) {
    if (c <= ' ' || c > '~' || c == ',') c = '?';
  }
  return text;
}

// What a body has that changes nothing: "user, metadata".
HttpHeaders IgnoredHeaders(const std::vector<std::string>& keys) {
  std::string names;
  for (const std::string& key : keys) names += (names.empty() ? "" : ", ") + HeaderText(key);
  if (names.empty()) return {};
  return {{kIgnoredHeader, std::move(names)}};
}

}  // namespace

int64_t SecondsSince1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

Caller CallerOf(const HttpExchange& exchange) {
  const HttpRequest& request = exchange.request();
  if (request.attached != nullptr) return *static_cast<const Caller*>(request.attached.get());
  const std::string& address = request.peer;
  return {.identity = AddressShare(address), .address = address, .door = Caller::Door::kHttp};
}

RequestContext RequestContextOf(const GatewayContext& context, const HttpExchange& exchange) {
  return {.id = exchange.request().id,
          .created_s = SecondsSince1970(),
          .any_model = context.options.any_model,
          .system_fingerprint = "tramontane-" + context.options.version,
          .strict_fields = context.options.strict_fields,
          .shapes = context.shapes};
}

void RespondWith(HttpExchange& exchange, const Json& body, const std::vector<std::string>& ignored) {
  HttpResponse response;
  response.headers = IgnoredHeaders(ignored);
  response.body = PrintJson(body);
  exchange.Respond(std::move(response));
}

void AnswerGeneration(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange,
                      ParseRequest parse, MakeWriter make_writer) {
  GenerationRequest request;
  if (auto fault = parse(exchange->request().body, RequestContextOf(context, *exchange), &request)) {
    return exchange->Respond(ErrorResponse(*fault));
  }
  GenerationPlan plan;
  plan.requests = std::move(request.calls);
  plan.shared = std::move(request.shared);
  plan.headers = IgnoredHeaders(request.ignored);
  plan.stream = request.answer.stream;
  plan.timing = WantsTiming(exchange->request());
  plan.writer = make_writer(std::move(request.answer), std::move(request.names));
  RunGeneration(context.client, std::move(plan), exchange);
}

}  // namespace tramontane
