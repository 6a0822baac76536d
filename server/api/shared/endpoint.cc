#include "server/api/shared/endpoint.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/api/shared/answer_record.h"
#include "server/api/shared/gateway_context.h"
#include "server/api/shared/started_headers.h"
#include "server/api/shared/timing.h"
#include "server/base/peer_address.h"

namespace tramontane {
namespace {

// What a body has that changes nothing: "user, metadata".
HttpHeaders IgnoredHeaders(const std::vector<std::string>& keys) {
  std::string names;
  for (const std::string& key : keys)
    names += (names.empty() ? "" : ", ") + HeaderText(key, /*blanks=*/false);
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
  if (const auto record = RecordOf(request)) return record->caller;
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
  RespondWithText(exchange, PrintJson(body), ignored);
}

void RespondWithText(HttpExchange& exchange, std::string body, const std::vector<std::string>& ignored) {
  HttpResponse response;
  response.headers = IgnoredHeaders(ignored);
  response.body = std::move(body);
  exchange.Respond(std::move(response));
}

std::string RenderedJson(const v1::GenerateRequest& call, const google::protobuf::RepeatedField<int32_t>& ids,
                         const std::string* text) {
  std::string json = "{\"request_id\":" + PrintJson(call.request_id()) + ",\"token_ids\":" + IdsJson(ids);
  if (!call.model().empty()) json += ",\"model\":" + PrintJson(call.model());
  if (text != nullptr) json += ",\"text\":" + PrintJson(*text);
  json += '}';
  return json;
}

std::string IdsJson(const google::protobuf::RepeatedField<int32_t>& ids) {
  constexpr size_t kIdBytes = 7;
  std::string json = "[";
  json.reserve(static_cast<size_t>(ids.size()) * kIdBytes);
  for (const int32_t id : ids) {
    if (json.size() > 1) json += ',';
    AppendJsonInteger(id, &json);
  }
  json += ']';
  return json;
}

// A list at a time, without its brackets.
std::string TextsJson(const google::protobuf::RepeatedPtrField<std::string>& texts) {
  constexpr int kTexts = 1024;
  std::string json = "[";
  for (int begin = 0; begin < texts.size(); begin += kTexts) {
    Json some = Json::array();
    for (int i = begin; i < std::min(texts.size(), begin + kTexts); ++i) some.push_back(texts[i]);
    const std::string list = PrintJson(some);
    if (begin > 0) json += ',';
    json.append(list, 1, list.size() - 2);
  }
  json += ']';
  return json;
}

void AnswerGeneration(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange,
                      ParseRequest parse, MakeWriter make_writer) {
  GenerationRequest request;
  if (auto fault = parse(exchange->request().body, RequestContextOf(context, *exchange), &request)) {
    return exchange->Fail(*fault);
  }
  GenerationPlan plan;
  plan.requests = std::move(request.calls);
  plan.shared = std::move(request.shared);
  plan.headers = IgnoredHeaders(request.ignored);
  plan.stream = request.answer.stream;
  plan.timing = WantsTiming(exchange->request());
  plan.room = {.max_bytes = context.options.field_limits.max_answer_bytes,
               .budget = context.options.unread_answers,
               .client = AddressShare(exchange->request().peer)};
  request.answer.metrics = plan.timing || context.options.per_request_metrics;
  if (context.options.counts_events) plan.counts = context.options.request_counts;
  plan.names = request.names[0];
  plan.writer = make_writer(std::move(request.answer), std::move(request.names));
  RunGeneration(context.client, std::move(plan), exchange);
}

}  // namespace tramontane
