#include "server/call/rpc_error.h"

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

std::string RpcError::field_text() const {
  if (!field_description.empty()) return field_description;
  return form == FieldForm::kSubject ? message() : sentence;
}

void RpcError::set_message(std::string_view text) {
  form = FieldForm::kUnnamed;
  for (const FieldForm named : {FieldForm::kLabel, FieldForm::kSubject}) {
    const std::string beginning = FieldText(field, named, "");
    if (!text.starts_with(beginning)) continue;
    form = named;
    text.remove_prefix(beginning.size());
    break;
  }
  sentence = text;
}

RpcError ToRpcError(const Status& status) {
  RpcError error;
  error.code = status.code();
  error.field = status.field();
  error.sentence = status.sentence();
  error.form = status.form();
  error.reason = DefaultReason(status.code());
  if (status.code() == StatusCode::kResourceExhausted) error.retry_after_ms = kBusyRetryMs;
  if (status.code() == StatusCode::kUnavailable) error.retry_after_ms = kUnavailableRetryMs;
  return error;
}

RpcError ToOutcome(const Status& status) {
  RpcError outcome = ToRpcError(status);
  if (outcome.code == StatusCode::kResourceExhausted) {
    outcome.reason = "REQUEST_LIMIT";
    outcome.retry_after_ms = 0;
  }
  return outcome;
}

Status ToStatus(const RpcError& error) {
  if (error.ok()) return Status::Ok();
  return Status(error.code, error.sentence).WithField(error.field, error.form);
}

RpcError FieldError(std::string path, std::string description) {
  return ToRpcError(InvalidArgument(std::move(description)).WithField(std::move(path)));
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
