#include "server/api/stages.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "server/access/doorkeeper.h"
#include "server/api/shared/api_error.h"
#include "server/api/shared/dialect.h"
#include "server/api/shared/request_timeout.h"
#include "server/api/shared/timing.h"
#include "server/base/host_port.h"

namespace tramontane {
namespace {

using Answer = std::optional<HttpResponse>;

Answer RefusedWith(const Arrival& arrival, const ApiError& error) {
  return ErrorResponse(*arrival.match.dialect, error, arrival.request);
}

Answer RefusedAtStage(const Arrival& arrival, int status, std::string code, std::string message) {
  ApiError error;
  error.status = status;
  if (status == 403) error.type = "permission_error";
  error.code = std::move(code);
  error.message = std::move(message);
  return RefusedWith(arrival, error);
}

bool HasAny(const std::vector<std::string>& allowed) {
  return std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
}

bool Has(const std::vector<std::string>& allowed, std::string_view value) {
  return std::any_of(allowed.begin(), allowed.end(),
                     [value](const std::string& one) { return EqualsIgnoringCase(one, value); });
}

// ---- who asks -----------------------------------------------------------------------------------

// A page whose name was made to lead here would pass for one of this server's own. On a loopback address the
// names are few. On another one they are checked where they are given, and an address is never a rebound
// name.
bool MayBeCalled(const Arrival& arrival, std::string_view authority) {
  const std::vector<std::string>& names = arrival.options.hosts;
  if (HasAny(names) || (!arrival.request.on_loopback && names.empty())) return true;
  const auto host = HostOf(authority);
  if (!host) return false;
  return IsLoopback(*host) || Has(names, *host) || (!arrival.request.on_loopback && IsIpAddress(*host));
}

Answer RefusedHost(const Arrival& arrival, std::string_view host) {
  return RefusedAtStage(
      arrival, 403, "host_not_allowed",
      "Host: \"" + std::string(host) + "\" is not a name of this server; http_host adds names");
}

Answer CheckHost(const Arrival& arrival) {
  for (const auto& [name, value] : arrival.request.headers) {
    if (name == "host" && !MayBeCalled(arrival, value)) return RefusedHost(arrival, value);
  }
  const std::string_view target = arrival.request.target;
  const size_t scheme = target.find("://");
  if (target.starts_with('/') || scheme == std::string_view::npos) return std::nullopt;
  const std::string_view authority =
      target.substr(scheme + 3, target.find_first_of("/?#", scheme + 3) - scheme - 3);
  return MayBeCalled(arrival, authority) ? std::nullopt : RefusedHost(arrival, authority);
}

bool IsLocalOrigin(std::string_view origin) {
  const auto host = HostOfOrigin(origin);
  return host && IsLoopback(*host);
}

// A page of another site can send a request that its browser does not ask about first.
Answer CheckOrigin(const Arrival& arrival) {
  const std::vector<std::string>& allowed = arrival.options.cors_origins;
  if (HasAny(allowed)) return std::nullopt;
  for (const auto& [name, value] : arrival.request.headers) {
    if (name != "origin" || IsLocalOrigin(value) || Has(allowed, value)) continue;
    return RefusedAtStage(
        arrival, 403, "origin_not_allowed",
        "Origin: \"" + value + "\" may not call this server; http_cors_origin adds origins");
  }
  return std::nullopt;
}

// ---- what for -----------------------------------------------------------------------------------

Answer CheckPath(const Arrival& arrival) {
  if (!arrival.match.methods.empty()) return std::nullopt;
  return RefusedAtStage(arrival, 404, "unknown_url", "unknown path " + arrival.request.path);
}

// Browsers ask this before they send anything but the simplest request.
Answer AnswerPreflight(const Arrival& arrival) {
  if (arrival.request.method != "OPTIONS") return std::nullopt;
  HttpResponse response;
  response.status = 204;
  response.content_type = "";
  const std::string methods = arrival.match.methods + ", OPTIONS";
  response.headers.emplace_back("allow", methods);
  if (!arrival.options.cors_origins.empty()) {
    response.headers.emplace_back("access-control-allow-methods", methods);
    const std::string* wanted = arrival.request.Header("access-control-request-headers");
    response.headers.emplace_back("access-control-allow-headers",
                                  wanted != nullptr ? *wanted : "authorization, content-type");
    response.headers.emplace_back("access-control-max-age", "86400");
  }
  return response;
}

Answer CheckMethod(const Arrival& arrival) {
  if (arrival.match.route != nullptr) return std::nullopt;
  const HttpRequest& request = arrival.request;
  Answer answer =
      RefusedAtStage(arrival, 405, "method_not_allowed",
                     request.path + " is for " + arrival.match.methods + ", not " + request.method);
  answer->headers.emplace_back("allow", arrival.match.methods);
  return answer;
}

Answer CheckDraining(const Arrival& arrival) {
  const bool is_probe = arrival.match.route->thread == AnsweredOn::kIoThread;
  if (!arrival.draining || arrival.request.method != "POST" || is_probe) return std::nullopt;
  return RefusedWith(arrival, ToApiError(ServerStops()));
}

// ---- with what ----------------------------------------------------------------------------------

std::string_view WithoutBlanks(std::string_view text) {
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Without a type, or with one that forms have, a browser sends a body without asking.
Answer CheckMediaType(const Arrival& arrival) {
  if (arrival.request.body.empty()) return std::nullopt;
  constexpr char kCode[] = "unsupported_media_type";
  const std::string* type = arrival.request.Header("content-type");
  if (type == nullptr)
    return RefusedAtStage(arrival, 415, kCode, "a body needs Content-Type: application/json");
  const std::string_view media = WithoutBlanks(std::string_view(*type).substr(0, type->find(';')));
  if (EqualsIgnoringCase(media, "application/json")) return std::nullopt;
  return RefusedAtStage(arrival, 415, kCode,
                        "Content-Type: \"" + *type + "\" is not understood, only application/json");
}

Answer CheckTimeout(const Arrival& arrival) {
  const std::string* timeout = arrival.request.Header(kTimeoutHeader);
  if (timeout == nullptr || ParseTimeout(*timeout)) return std::nullopt;
  return RefusedAtStage(arrival, 400, "invalid_timeout",
                        "grpc-timeout: \"" + *timeout +
                            "\" is not a number of up to eight digits and a unit (H, M, S, m, u or n)");
}

Answer CheckTiming(const Arrival& arrival) {
  const std::string* timing = arrival.request.Header(kTimingHeader);
  if (timing == nullptr || *timing == "0" || *timing == "1") return std::nullopt;
  return RefusedAtStage(arrival, 400, "invalid_timing",
                        "x-tramontane-timing: \"" + *timing + "\" is not understood, only 1 and 0");
}

// From the outside to the inside: a stage may rely on those above it.
constexpr std::array kStages = {CheckHost,     CheckOrigin,    CheckPath,    AnswerPreflight, CheckMethod,
                                CheckDraining, CheckMediaType, CheckTimeout, CheckTiming};
constexpr size_t kStagesBeforeKeys = 5;

// All fields of that name, as one list.
std::string Joined(const HttpRequest& request, std::string_view wanted) {
  std::string list;
  for (const auto& [name, value] : request.headers) {
    if (name == wanted) list.append(list.empty() ? "" : ", ").append(value);
  }
  return list;
}

std::string_view HeaderOf(const HttpRequest& request, std::string_view name) {
  const std::string* value = request.Header(name);
  return value == nullptr ? std::string_view() : std::string_view(*value);
}

}  // namespace

std::optional<HttpResponse> PassStages(const Arrival& arrival) {
  for (const auto& stage : kStages) {
    if (Answer answer = stage(arrival)) return answer;
  }
  return std::nullopt;
}

std::optional<HttpResponse> IdentifyCaller(const Arrival& arrival, Caller* caller) {
  const HttpRequest& request = arrival.request;
  const std::string forwarded_for = Joined(request, "x-forwarded-for");
  const Credentials credentials = {.address = request.peer,
                                   .forwarded_for = forwarded_for,
                                   .authorization = HeaderOf(request, "authorization"),
                                   .api_key = HeaderOf(request, "x-api-key"),
                                   .tramontane_caller = HeaderOf(request, kTramontaneCallerKey),
                                   .caller_weight = HeaderOf(request, kCallerWeightKey)};
  const Doorkeeper& doorkeeper = *arrival.options.doorkeeper;
  const Route* route = arrival.match.route;
  const bool is_refused_before =
      std::any_of(kStages.begin(), kStages.begin() + kStagesBeforeKeys,
                  [&arrival](const auto& stage) { return stage(arrival).has_value(); });
  const bool is_metrics = route != nullptr && route->path == "/metrics";
  const bool needs_no_key =
      is_refused_before || (route->is_open && !(is_metrics && arrival.options.protect_metrics));
  if (needs_no_key) {
    *caller = doorkeeper.ByAddress(credentials, Caller::Door::kHttp);
    return std::nullopt;
  }
  const RpcError error = doorkeeper.Identify(credentials, Caller::Door::kHttp, caller);
  if (!error.ok()) return RefusedWith(arrival, ToApiError(error));
  const bool lacks_right = route->doors == OnDoors::kAdmin && caller->key != nullptr && !caller->key->admin;
  if (!lacks_right) return std::nullopt;
  return RefusedAtStage(arrival, 403, "admin_only",
                        "the key \"" + caller->key->name + "\" has no right to " + request.path);
}

HttpHeaders CorsHeaders(const GatewayOptions& options, const HttpRequest& request) {
  const std::vector<std::string>& allowed = options.cors_origins;
  if (allowed.empty()) return {};
  HttpHeaders headers = {
      {"access-control-expose-headers",
       "x-request-id, retry-after, retry-after-ms, x-should-retry, x-tramontane-ignored, "
       "x-tramontane-unenforced, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
       "x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, "
       "x-ratelimit-reset-tokens"}};
  if (HasAny(allowed)) {
    headers.emplace_back("access-control-allow-origin", "*");
    return headers;
  }
  headers.emplace_back("vary", "origin");
  const std::string* origin = request.Header("origin");
  if (origin != nullptr && Has(allowed, *origin)) {
    headers.emplace_back("access-control-allow-origin", *origin);
  }
  return headers;
}

}  // namespace tramontane
