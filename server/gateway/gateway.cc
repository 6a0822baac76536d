#include "server/gateway/gateway.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>

#include "server/gateway/api_error.h"
#include "server/gateway/http_server.h"
#include "server/gateway/routes.h"

namespace tramontane {
namespace {

constexpr std::chrono::milliseconds kDrainPoll{2};

ApiError Refusal(int status, std::string type, std::string code, std::string message) {
  ApiError error;
  error.status = status;
  error.type = std::move(type);
  error.code = std::move(code);
  error.message = std::move(message);
  return error;
}

bool Matches(const Route& route, std::string_view path) {
  if (!route.path.ends_with('*')) return route.path == path;
  const std::string_view fixed = route.path.substr(0, route.path.size() - 1);
  return path.starts_with(fixed) && path.size() > fixed.size();
}

std::string_view WithoutBlanks(std::string_view text) {
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if ((a[i] | 0x20) != (b[i] | 0x20)) return false;
  }
  return true;
}

// "" when a body of this kind can be read, else why not.
std::string MediaTypeFault(const HttpRequest& request) {
  if (request.body.empty()) return "";
  const std::string* type = request.Header("content-type");
  if (type != nullptr) {
    const std::string_view media = WithoutBlanks(std::string_view(*type).substr(0, type->find(';')));
    if (!EqualsIgnoringCase(media, "application/json")) {
      return "Content-Type: \"" + *type + "\" is not understood, only application/json";
    }
  }
  return "";
}

HttpServerOptions ServerOptionsOf(const GatewayOptions& options) {
  HttpServerOptions server;
  server.address = options.address;
  server.io_threads = options.io_threads;
  server.handler_threads = options.handler_threads;
  server.limits = options.limits;
  if (!options.cors_origin.empty()) {
    server.headers = {{"access-control-allow-origin", options.cors_origin},
                      {"access-control-expose-headers", "x-request-id, retry-after, retry-after-ms"}};
    if (options.cors_origin != "*") server.headers.emplace_back("vary", "origin");
  }
  return server;
}

}  // namespace

struct Gateway::Impl {
  Impl(GatewayOptions given, InferenceClient& client) : options(std::move(given)), context{client, options} {}

  void Handle(const std::shared_ptr<HttpExchange>& exchange);
  void AnswerOptions(HttpExchange& exchange, const std::string& methods);

  const GatewayOptions options;
  const GatewayContext context;
  std::atomic<bool> draining{false};
  std::unique_ptr<HttpServer> server;
};

// On a handler thread.
void Gateway::Impl::Handle(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  std::string methods;
  const Route* found = nullptr;
  for (const Route& route : Routes()) {
    if (!Matches(route, request.path)) continue;
    methods.append(methods.empty() ? "" : ", ").append(route.method);
    if (route.method == method) found = &route;
  }
  if (methods.empty()) {
    return exchange->Respond(
        ErrorResponse(Refusal(404, "invalid_request_error", "unknown_url", "unknown path " + request.path)));
  }
  if (method == "OPTIONS") return AnswerOptions(*exchange, methods);
  if (found == nullptr) {
    HttpResponse response =
        ErrorResponse(Refusal(405, "invalid_request_error", "method_not_allowed",
                              request.path + " is for " + methods + ", not " + request.method));
    response.headers.emplace_back("allow", methods);
    return exchange->Respond(std::move(response));
  }
  if (draining && method == "POST") {
    ApiError error = Refusal(503, "service_unavailable", "draining", "the server is shutting down");
    error.retry_after_ms = 2000;
    return exchange->Respond(ErrorResponse(error));
  }
  const std::string media_fault = MediaTypeFault(request);
  if (!media_fault.empty()) {
    return exchange->Respond(
        ErrorResponse(Refusal(415, "invalid_request_error", "unsupported_media_type", media_fault)));
  }
  try {
    found->endpoint(context, exchange);
  } catch (const std::exception& fault) {
    exchange->Respond(ErrorResponse(Refusal(500, "server_error", "internal",
                                            std::string("the request could not be read: ") + fault.what())));
  }
}

// Browsers ask this before they send anything but the simplest request.
void Gateway::Impl::AnswerOptions(HttpExchange& exchange, const std::string& methods) {
  HttpResponse response;
  response.status = 204;
  response.content_type = "";
  response.headers.emplace_back("allow", methods + ", OPTIONS");
  if (!options.cors_origin.empty()) {
    response.headers.emplace_back("access-control-allow-methods", methods + ", OPTIONS");
    const std::string* wanted = exchange.request().Header("access-control-request-headers");
    response.headers.emplace_back("access-control-allow-headers",
                                  wanted != nullptr ? *wanted : "authorization, content-type");
    response.headers.emplace_back("access-control-max-age", "86400");
  }
  exchange.Respond(std::move(response));
}

StatusOr<std::unique_ptr<Gateway>> Gateway::Start(GatewayOptions options, InferenceClient& client) {
  auto impl = std::make_unique<Impl>(std::move(options), client);
  TM_ASSIGN_OR_RETURN(
      impl->server, HttpServer::Start(ServerOptionsOf(impl->options),
                                      [impl = impl.get()](const std::shared_ptr<HttpExchange>& exchange) {
                                        exchange->RunOnHandler([impl, exchange] { impl->Handle(exchange); });
                                      }));
  return std::unique_ptr<Gateway>(new Gateway(std::move(impl)));
}

Gateway::Gateway(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Gateway::~Gateway() = default;

const std::string& Gateway::address() const { return impl_->server->address(); }

bool Gateway::Drain(int64_t timeout_ns) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::nanoseconds(timeout_ns);
  impl_->draining = true;
  impl_->server->CloseWhenAnswered();
  while (impl_->server->open_exchanges() > 0) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kDrainPoll);
  }
  return true;
}

void Gateway::Stop() { impl_->server->Stop(); }

}  // namespace tramontane
