#include "kernels/core/status.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace tramontane {

const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kCancelled:
      return "CANCELLED";
    case StatusCode::kUnknown:
      return "UNKNOWN";
    case StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case StatusCode::kNotFound:
      return "NOT_FOUND";
    case StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case StatusCode::kAborted:
      return "ABORTED";
    case StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case StatusCode::kInternal:
      return "INTERNAL";
    case StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case StatusCode::kDataLoss:
      return "DATA_LOSS";
    case StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
  }
  return "UNKNOWN";
}

std::string FieldText(std::string_view field, FieldForm form, std::string_view sentence) {
  std::string text;
  if (!field.empty() && form != FieldForm::kUnnamed) {
    text = field;
    text += form == FieldForm::kLabel ? ": " : " ";
  }
  return text.append(sentence);
}

std::string FieldPath(std::string_view outer, std::string_view inner) {
  std::string path(outer);
  const bool is_joined = outer.empty() || inner.empty() || inner.front() == '.' || inner.front() == '[';
  if (!is_joined) path += '.';
  return path.append(inner);
}

std::string FieldElement(std::string_view list, size_t index) {
  return std::string(list) + '[' + std::to_string(index) + ']';
}

bool LiesInField(std::string_view path, std::string_view outer) {
  if (!path.starts_with(outer)) return false;
  return path.size() == outer.size() || path[outer.size()] == '.' || path[outer.size()] == '[';
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  std::string text = std::string(StatusCodeName(code_)) + ": ";
  for (const char byte : message()) {
    const auto value = static_cast<unsigned char>(byte);
    if (value >= 0x20 && value != 0x7f) {
      text += byte;
      continue;
    }
    char escaped[5];
    std::snprintf(escaped, sizeof(escaped), "\\x%02x", value);
    text += byte == '\n' ? "\\n" : escaped;
  }
  return text;
}

std::ostream& operator<<(std::ostream& out, const Status& status) { return out << status.ToString(); }

void CheckFailed(const char* file, int line, const char* condition, const char* format, ...) {
  std::fprintf(stderr, "%s:%d: check failed: %s: ", file, line, condition);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::fflush(stderr);
  std::abort();
}

}  // namespace tramontane
