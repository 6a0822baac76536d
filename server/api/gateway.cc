#include "server/api/gateway.h"

#include <atomic>
#include <exception>
#include <string_view>
#include <utility>
#include <vector>

#include "server/access/doorkeeper.h"
#include "server/access/key_use.h"
#include "server/access/tls_files.h"
#include "server/api/openai/request_shapes.h"
#include "server/api/routes.h"
#include "server/api/shared/answer_record.h"
#include "server/api/shared/api_error.h"
#include "server/api/shared/dialect.h"
#include "server/api/shared/gateway_exchange.h"
#include "server/api/stages.h"
#include "server/http/server.h"

namespace tramontane {
namespace {

ApiError EndpointFault(const std::exception& fault) {
  ApiError error;
  error.status = 500;
  error.type = "server_error";
  error.code = "internal";
  error.message = std::string("the request could not be read: ") + fault.what();
  return error;
}

// As the table has it; what it has not as it was asked for.
std::string RouteText(const RouteMatch& match, const HttpRequest& request) {
  if (match.route == nullptr) return request.path.substr(0, kMaxLoggedFieldBytes);
  return (match.route->spelling == Spelling::kApi ? "/v1" : "") + std::string(match.path);
}

bool Generates(const RouteMatch& match) {
  return match.route != nullptr && match.route->what == Route::What::kGenerates;
}

// Outlives the gateway, as exchanges may.
AnswerWatch WatchOf(const GatewayOptions& options, const RouteMatch& match, const HttpRequest& request) {
  return {options.http_counts, Generates(match) ? options.request_counts : nullptr, match.path, request};
}

// Of whatever the answer is.
HttpHeaders AnswerHeaders(const GatewayOptions& options, const HttpRequest& request) {
  HttpHeaders headers = CorsHeaders(options, request);
  TraceContext trace = TraceOf(request);
  if (!trace.parent.empty()) headers.emplace_back(kTraceParentKey, std::move(trace.parent));
  return headers;
}

// And, of an answer that begins now, what its caller's key has left.
HttpHeaders WithRateLimits(HttpHeaders headers, const HttpRequest& request) {
  const auto record = RecordOf(request);
  if (record == nullptr) return headers;
  for (auto& header : RateLimitHeaders(record->caller.key.get())) headers.push_back(std::move(header));
  return headers;
}

// Of what was refused before its header was whole there is no record yet.
void TellAnswered(const RequestLog& log, const HttpRequest& request, int status) {
  std::shared_ptr<AnswerRecord> record = RecordOf(request);
  if (record == nullptr) {
    record = std::make_shared<AnswerRecord>(log, request.path.substr(0, kMaxLoggedFieldBytes),
                                            /*generates=*/false);
    record->NoteId(request.request_id);
  }
  record->Tell(status);
}

// The routes of a door.
struct DoorRoutes {
  DoorRoutes(const std::vector<Route>& routes, const GatewayOptions& options) : routes(routes) {
    if (options.is_admin_door) door = options.trace != nullptr ? Door::kAdmin : Door::kAdminWithoutDebug;
  }
  RouteMatch Find(const HttpRequest& request) const {
    const std::string_view method = request.method == "HEAD" ? std::string_view("GET") : request.method;
    return FindRoute(method, request.path, door, routes);
  }

  const std::vector<Route>& routes;
  Door door = Door::kPublic;
};

// An answer that no exchange gives has what theirs have, and is counted.
void CompleteRefusal(const GatewayOptions& options, const RouteMatch& match, const HttpRequest& request,
                     HttpResponse* response) {
  for (auto& header : WithRateLimits(AnswerHeaders(options, request), request))
    response->headers.push_back(std::move(header));
  WatchOf(options, match, request).OnRefused(*response);
}

// What the transport refuses is said in the words of its route.
RefusalWriter RefusalWriterOf(const GatewayOptions& options, const DoorRoutes& routes) {
  return [options, routes](const HttpRefusal& refusal, const HttpRequest& request) {
    const RouteMatch match = routes.Find(request);
    HttpResponse response = ErrorResponse(*match.dialect, ToApiError(refusal), request);
    CompleteRefusal(options, match, request, &response);
    return response;
  };
}

// Who asks is known before the body is waited for.
std::optional<HttpResponse> AttachCaller(const GatewayOptions& options, const DoorRoutes& routes,
                                         HttpRequest* request) {
  const RouteMatch match = routes.Find(*request);
  const auto record =
      std::make_shared<AnswerRecord>(options.request_log, RouteText(match, *request), Generates(match));
  request->attached = record;
  auto refusal = IdentifyCaller({.request = *request, .match = match, .options = options}, &record->caller);
  record->caller.trace = TraceOf(*request);
  record->NoteId(request->request_id);
  if (refusal) CompleteRefusal(options, match, *request, &*refusal);
  return refusal;
}

// Null: no TLS.
std::function<std::shared_ptr<ssl_ctx_st>()> TlsContextOf(const GatewayOptions& options) {
  if (options.tls == nullptr) return {};
  return [files = options.tls] { return files->context(); };
}

HttpServerOptions ServerOptionsOf(const GatewayOptions& options, const DoorRoutes& routes) {
  return {.address = options.address,
          .io_threads = options.io_threads,
          .handler_threads = options.handler_threads,
          .limits = options.limits,
          .write_refusal = RefusalWriterOf(options, routes),
          .on_header = [&options,
                        routes](HttpRequest* request) { return AttachCaller(options, routes, request); },
          .on_answered = [log = options.request_log](const HttpRequest& request,
                                                     int status) { TellAnswered(log, request, status); },
          .unread_answers = options.unread_answers,
          .tls_context = TlsContextOf(options)};
}

}  // namespace

struct Gateway::Impl {
  Impl(GatewayOptions given, InferenceClient& client, const std::vector<Route>& all_routes)
      : options(std::move(given)),
        routes(all_routes, options),
        shapes(options.field_limits),
        context{client, options, leaving, &shapes} {}

  void Handle(const std::shared_ptr<HttpExchange>& received) const;
  void Run(const Route& route, const std::shared_ptr<GatewayExchange>& exchange) const;

  const GatewayOptions options;
  const DoorRoutes routes;
  const RequestShapes shapes;
  const GatewayContext context;
  std::atomic<bool> leaving{false};
  std::atomic<bool> draining{false};
  std::unique_ptr<HttpServer> server;
};

// On an io thread.
void Gateway::Impl::Handle(const std::shared_ptr<HttpExchange>& received) const {
  const HttpRequest& request = received->request();
  const RouteMatch match = routes.Find(request);
  if (const auto record = RecordOf(request)) record->NoteId(request.request_id);
  const auto exchange = std::make_shared<GatewayExchange>(
      received, *match.dialect,
      [headers = AnswerHeaders(options, request), &request] { return WithRateLimits(headers, request); },
      WatchOf(options, match, request));
  auto answer = PassStages({.request = request, .match = match, .options = options, .draining = draining});
  if (answer) return exchange->Respond(*std::move(answer));
  const Route& route = *match.route;
  if (route.thread == AnsweredOn::kIoThread) return Run(route, exchange);
  exchange->RunOnHandler([this, &route, exchange] { Run(route, exchange); });
}

void Gateway::Impl::Run(const Route& route, const std::shared_ptr<GatewayExchange>& exchange) const {
  try {
    route.endpoint(context, exchange);
  } catch (const std::exception& fault) {
    exchange->Fail(EndpointFault(fault));
  }
}

StatusOr<std::unique_ptr<Gateway>> Gateway::Start(GatewayOptions options, InferenceClient& client,
                                                  const std::vector<Route>& routes) {
  if (options.doorkeeper == nullptr) {
    options.doorkeeper = std::make_shared<const Doorkeeper>();
  }
  if (options.http_counts == nullptr) options.http_counts = NewHttpCounts(routes);
  if (options.request_counts == nullptr) options.request_counts = std::make_shared<RequestCounts>();
  auto impl = std::make_unique<Impl>(std::move(options), client, routes);
  TM_ASSIGN_OR_RETURN(impl->server,
                      HttpServer::Start(ServerOptionsOf(impl->options, impl->routes),
                                        [impl = impl.get()](const std::shared_ptr<HttpExchange>& exchange) {
                                          impl->Handle(exchange);
                                        }));
  return std::unique_ptr<Gateway>(new Gateway(std::move(impl)));
}

Gateway::Gateway(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Gateway::~Gateway() = default;

const std::string& Gateway::address() const { return impl_->server->address(); }
int64_t Gateway::connections() const { return impl_->server->connections(); }
int64_t Gateway::held_body_bytes() const { return impl_->server->held_body_bytes(); }

void Gateway::Leave() {
  impl_->leaving = true;
  impl_->server->CloseWhenAnswered();
}

bool Gateway::Drain(int64_t timeout_ns) {
  Leave();
  impl_->draining = true;
  return impl_->server->WaitForAnswers(timeout_ns);
}

void Gateway::Stop() {
  impl_->leaving = impl_->draining = true;
  impl_->server->Stop();
}

}  // namespace tramontane
