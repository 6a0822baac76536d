#include "server/core/rpc_error.h"

namespace tramontane {
namespace {

constexpr int64_t kBusyRetryMs = 500;
constexpr int64_t kUnavailableRetryMs = 2000;

const char* DefaultReason(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return "INVALID_FIELD";
    case StatusCode::kNotFound:
      return "NOT_FOUND";
    case StatusCode::kResourceExhausted:
      return "QUEUE_FULL";
    case StatusCode::kUnavailable:
      return "DRAINING";
    case StatusCode::kInternal:
      return "INTERNAL";
    case StatusCode::kFailedPrecondition:
      return "MODEL_LACKS_FEATURE";
    default:
      return "";
  }
}

}  // namespace

RpcError ToRpcError(const Status& status) {
  RpcError error;
  error.code = status.code();
  error.message = status.message();
  error.reason = DefaultReason(status.code());
  if (!status.field().empty()) error.violations.push_back({status.field(), status.message()});
  if (status.code() == StatusCode::kResourceExhausted) error.retry_after_ms = kBusyRetryMs;
  if (status.code() == StatusCode::kUnavailable) error.retry_after_ms = kUnavailableRetryMs;
  return error;
}

RpcError FieldError(std::string path, std::string description) {
  RpcError error;
  error.code = StatusCode::kInvalidArgument;
  error.message = path + ": " + description;
  error.reason = DefaultReason(error.code);
  error.violations.push_back({std::move(path), std::move(description)});
  return error;
}

RpcError BusyError(std::string reason, std::string message) {
  RpcError error = ToRpcError(ResourceExhausted(std::move(message)));
  error.reason = std::move(reason);
  return error;
}

RpcError UnavailableError(std::string reason, std::string message) {
  RpcError error = ToRpcError(Unavailable(std::move(message)));
  error.reason = std::move(reason);
  return error;
}

}  // namespace tramontane
