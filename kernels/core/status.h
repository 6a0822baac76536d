// Status and StatusOr: how a user's fault or the world's is reported below server/.
//
// Any thread. Values; no hidden state.
// A Status is either OK or a code with a message that names the thing asked, the value and the limit. Codes
// carry gRPC's and Abseil's names, so server/ maps them one to one. Our own bugs are TM_CHECK (check.h),
// never a Status.
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {

// Numeric values equal grpc::StatusCode.
enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

const char* StatusCodeName(StatusCode code);  // "INVALID_ARGUMENT"

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // The request field or file that is at fault, "" when none: "sampling.top_p", "model.safetensors".
  const std::string& field() const { return field_; }
  Status WithField(std::string field) && {
    field_ = std::move(field);
    return std::move(*this);
  }
  std::string ToString() const;  // "INVALID_ARGUMENT: message"

  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::string field_;
};

std::ostream& operator<<(std::ostream& out, const Status& status);

inline Status InvalidArgument(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}
inline Status NotFound(std::string message) { return {StatusCode::kNotFound, std::move(message)}; }
inline Status ResourceExhausted(std::string message) {
  return {StatusCode::kResourceExhausted, std::move(message)};
}
inline Status FailedPrecondition(std::string message) {
  return {StatusCode::kFailedPrecondition, std::move(message)};
}
inline Status Unimplemented(std::string message) { return {StatusCode::kUnimplemented, std::move(message)}; }
inline Status Unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }
inline Status Internal(std::string message) { return {StatusCode::kInternal, std::move(message)}; }
inline Status DataLoss(std::string message) { return {StatusCode::kDataLoss, std::move(message)}; }

// Either a T or a Status that is not OK.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    TM_CHECK(!status_.ok(), "a StatusOr without a value needs an error");
  }
  StatusOr(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return status_.ok(); }
  const Status& status() const& { return status_; }
  Status status() && { return std::move(status_); }

  // REQUIRES: ok().
  T& value() & {
    TM_CHECK(ok(), "value() of an error: %s", status_.message().c_str());
    return *value_;
  }
  const T& value() const& {
    TM_CHECK(ok(), "value() of an error: %s", status_.message().c_str());
    return *value_;
  }
  T&& value() && {
    TM_CHECK(ok(), "value() of an error: %s", status_.message().c_str());
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

#define TM_RETURN_IF_ERROR(expression)             \
  do {                                             \
    ::tramontane::Status tm_status = (expression); \
    if (!tm_status.ok()) return tm_status;         \
  } while (false)

#define TM_CONCAT_INNER(a, b) a##b
#define TM_CONCAT(a, b) TM_CONCAT_INNER(a, b)
#define TM_ASSIGN_OR_RETURN_IMPL(holder, lhs, expression) \
  auto holder = (expression);                             \
  if (!holder.ok()) return std::move(holder).status();    \
  lhs = std::move(holder).value()
// TM_ASSIGN_OR_RETURN(auto config, LoadConfig(path));
#define TM_ASSIGN_OR_RETURN(lhs, expression) \
  TM_ASSIGN_OR_RETURN_IMPL(TM_CONCAT(tm_or_, __LINE__), lhs, expression)

}  // namespace tramontane
