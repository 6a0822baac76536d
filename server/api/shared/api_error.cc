#include "server/api/shared/api_error.h"

#include <utility>

#include "server/base/text.h"
#include "server/call/remedy.h"

namespace tramontane {
namespace {

constexpr int64_t kBusyRetryMs = 500;

// How OpenAI's clients are told of a gRPC status.
struct Mapping {
  StatusCode code;
  int http_status;
  const char* type;
};
constexpr Mapping kMappings[] = {
    {StatusCode::kInvalidArgument, 400, "invalid_request_error"},
    {StatusCode::kOutOfRange, 400, "invalid_request_error"},
    {StatusCode::kFailedPrecondition, 400, "invalid_request_error"},
    {StatusCode::kUnauthenticated, 401, "authentication_error"},
    {StatusCode::kPermissionDenied, 403, "permission_error"},
    {StatusCode::kNotFound, 404, "invalid_request_error"},
    {StatusCode::kAlreadyExists, 409, "invalid_request_error"},
    {StatusCode::kAborted, 409, "invalid_request_error"},
    {StatusCode::kResourceExhausted, 429, "rate_limit_error"},
    {StatusCode::kUnimplemented, 400, "invalid_request_error"},  // not 501, which clients would try again
    {StatusCode::kCancelled, 499,
     "invalid_request_error"},  // by its id, from elsewhere; not to be tried again
    {StatusCode::kUnavailable, 503, "service_unavailable"},
    {StatusCode::kDeadlineExceeded, 504, "server_error"},
};
constexpr Mapping kOther = {StatusCode::kInternal, 500, "server_error"};

const Mapping& MappingOf(StatusCode code) {
  for (const Mapping& mapping : kMappings) {
    if (mapping.code == code) return mapping;
  }
  return kOther;
}

int StatusOf(const RpcError& error, const Mapping& mapping) {
  // What the server holds is in the way, not what was asked.
  if (error.code == StatusCode::kFailedPrecondition && error.reason.starts_with("SESSION_")) return 409;
  if (error.reason == "MESSAGE_TOO_LARGE") return 413;
  return error.reason == "BAD_GATEWAY" ? 502 : mapping.http_status;
}

// "sampling.top_p" -> "top_p": OpenAI's requests are flat where the .proto has groups.
std::string ParamOf(const std::string& path) {
  for (const char* group : {"sampling.", "stopping.", "output.", "chat."}) {
    if (path.rfind(group, 0) == 0) return path.substr(std::char_traits<char>::length(group));
  }
  return path;
}

}  // namespace

ApiError BadRequest(std::string param, std::string message) {
  ApiError error;
  error.param = std::move(param);
  error.message = std::move(message);
  return error;
}

ApiError FieldFault(const std::string& field, const std::string& text) {
  return BadRequest(field, field + ": " + text);
}

ApiError ToApiError(const HttpRefusal& refusal) {
  ApiError error;
  error.status = refusal.status;
  if (refusal.status == 503) error.type = "service_unavailable";
  if (refusal.status == 500) error.type = "server_error";
  error.message = refusal.message;
  error.code = refusal.reason;
  error.retry_after_ms = refusal.retry_after_ms;
  return error;
}

ApiError ToApiError(const RpcError& error) {
  const Mapping& mapping = MappingOf(error.code);
  ApiError result;
  result.status = StatusOf(error, mapping);
  result.type = mapping.type;
  result.message = error.message();
  result.code = error.missing_model.empty() ? LowerCase(error.reason) : "model_not_found";
  result.param = ParamOf(error.field);
  if (!error.missing_model.empty()) result.param = "model";
  result.retry_after_ms = error.retry_after_ms;
  const bool is_tried_again = result.status == 409 || result.status == 429;  // whatever the reason
  result.retry_is_vain = is_tried_again && RemedyOf(error) == Remedy::kNone;
  if (result.status != 429) return result;
  // A server behind may have said neither.
  if (result.code.empty()) result.code = "queue_full";
  if (result.retry_after_ms == 0) result.retry_after_ms = kBusyRetryMs;
  if (result.retry_is_vain) result.retry_after_ms = 0;
  return result;
}

}  // namespace tramontane
