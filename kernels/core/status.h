// Status and StatusOr: how a user's fault or the world's is reported below server/.
//
// Any thread. Values; no hidden state.
// A Status is either OK or a code with a sentence that names the thing asked, the value and the limit. What
// the sentence is about lies beside it as a path, so that who hands the error on can say the path in his
// caller's words; text is made of the two when it is printed, in FieldText, and never taken apart again.
// Codes carry gRPC's and Abseil's names, so server/ maps them one to one. Our own bugs are TM_CHECK
// (check.h), never a Status.
#pragma once

#include <cstddef>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
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
  kUnauthenticated = 16,
};

const char* StatusCodeName(StatusCode code);  // "INVALID_ARGUMENT"

// How a text names the field that its sentence is about.
enum class FieldForm {
  kLabel,    // "sampling.top_p: is 1.5"
  kSubject,  // "sampling.top_p is 1.5"
  kUnnamed,  // "the sum is 1.5": the sentence stands alone
};

// The one place where a field and what is said of it become a text. Without a field: the sentence.
std::string FieldText(std::string_view field, FieldForm form, std::string_view sentence);

// The path of what `inner` names inside `outer`: "chat" and "messages[2]" are "chat.messages[2]"; an index or
// a path that begins with a dot needs none in between. Either may be "".
std::string FieldPath(std::string_view outer, std::string_view inner);
std::string FieldElement(std::string_view list, size_t index);  // "messages[2]"
// Whether `path` is `outer` or lies inside it.
bool LiesInField(std::string_view path, std::string_view outer);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string sentence) : code_(code), sentence_(std::move(sentence)) {}

  static Status Ok() { return {}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  // For people: the sentence, with the field where it is named.
  std::string message() const { return FieldText(field_, form_, sentence_); }
  // What is wrong, without the field: "is 1.5; the most is 1".
  const std::string& sentence() const { return sentence_; }
  // The path of what is at fault, in the request, the file or the schema; "" when nothing is named.
  const std::string& field() const { return field_; }
  FieldForm form() const { return form_; }
  Status WithField(std::string field, FieldForm form = FieldForm::kLabel) && {
    field_ = std::move(field);
    form_ = form;
    return std::move(*this);
  }
  // What was the whole to who found the fault is `outer` to his caller.
  Status InField(std::string_view outer) && {
    field_ = FieldPath(outer, field_);
    return std::move(*this);
  }
  std::string ToString() const;  // "INVALID_ARGUMENT: message", one line: control characters are escaped

  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string sentence_;
  std::string field_;
  FieldForm form_ = FieldForm::kLabel;
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
