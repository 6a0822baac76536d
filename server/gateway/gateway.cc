#include "server/gateway/gateway.h"

#include <atomic>
#include <exception>
#include <string_view>
#include <utility>

#include "server/gateway/api_error.h"
#include "server/gateway/gateway_exchange.h"
#include "server/gateway/http_server.h"
#include "server/gateway/routes.h"
#include "server/gateway/stages.h"

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

HttpServerOptions ServerOptionsOf(const GatewayOptions& options) {
  HttpServerOptions server;
  server.address = options.address;
  server.io_threads = options.io_threads;
  server.handler_threads = options.handler_threads;
  server.limits = options.limits;
  return server;
}

}  // namespace

struct Gateway::Impl {
  Impl(GatewayOptions given, InferenceClient& client)
      : options(std::move(given)),
        shapes(options.field_limits),
        context{client, options, *counts, draining, &shapes} {}

  void Handle(const std::shared_ptr<HttpExchange>& received) const;
  std::function<void(int status)> OnAnswer(const Route* route, const HttpRequest& request) const;
  void Run(const Route& route, const std::shared_ptr<HttpExchange>& exchange) const;

  const GatewayOptions options;
  const RequestShapes shapes;
  const std::shared_ptr<HttpCounts> counts = std::make_shared<HttpCounts>();
  const GatewayContext context;
  std::atomic<bool> draining{false};
  std::unique_ptr<HttpServer> server;
};

// On an io thread.
void Gateway::Impl::Handle(const std::shared_ptr<HttpExchange>& received) const {
  const HttpRequest& request = received->request();
  const RouteMatch match = FindRoute(request.method == "HEAD" ? "GET" : request.method, request.path);
  const auto exchange = std::make_shared<GatewayExchange>(received, CorsHeaders(options, request),
                                                          OnAnswer(match.route, request));
  auto answer = PassStages({.request = request, .match = match, .options = options, .draining = draining});
  if (answer) return exchange->Respond(*std::move(answer));
  const Route& route = *match.route;
  if (route.thread == AnsweredOn::kIoThread) return Run(route, exchange);
  exchange->RunOnHandler([this, &route, exchange] { Run(route, exchange); });
}

// An answer may begin when this gateway is gone already. The request is its exchange's.
std::function<void(int status)> Gateway::Impl::OnAnswer(const Route* route,
                                                        const HttpRequest& request) const {
  const std::string_view path = route == nullptr ? std::string_view() : route->path;
  return [counts = counts, path, tell = options.on_answer, &request](int status) {
    counts->Count(path, status);
    if (tell != nullptr) tell(request, status);
  };
}

void Gateway::Impl::Run(const Route& route, const std::shared_ptr<HttpExchange>& exchange) const {
  try {
    route.endpoint(context, exchange);
  } catch (const std::exception& fault) {
    exchange->Respond(ErrorResponse(EndpointFault(fault)));
  }
}

StatusOr<std::unique_ptr<Gateway>> Gateway::Start(GatewayOptions options, InferenceClient& client) {
  auto impl = std::make_unique<Impl>(std::move(options), client);
  TM_ASSIGN_OR_RETURN(impl->server,
                      HttpServer::Start(ServerOptionsOf(impl->options),
                                        [impl = impl.get()](const std::shared_ptr<HttpExchange>& exchange) {
                                          impl->Handle(exchange);
                                        }));
  return std::unique_ptr<Gateway>(new Gateway(std::move(impl)));
}

Gateway::Gateway(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Gateway::~Gateway() = default;

const std::string& Gateway::address() const { return impl_->server->address(); }

bool Gateway::Drain(int64_t timeout_ns) {
  impl_->draining = true;
  impl_->server->CloseWhenAnswered();
  return impl_->server->WaitForAnswers(timeout_ns);
}

void Gateway::Stop() {
  impl_->draining = true;
  impl_->server->Stop();
}

}  // namespace tramontane
