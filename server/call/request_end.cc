#include "server/call/request_end.h"

#include <algorithm>

#include "server/base/text.h"

namespace tramontane {
namespace {

RequestEnd RefusedFor(std::string_view reason) {
  const auto* found = std::find(kRefusalReasons.begin(), kRefusalReasons.end() - 1, reason);
  return {RequestOutcome::kRefused, static_cast<size_t>(found - kRefusalReasons.begin())};
}

bool IsReason(std::string_view code) {
  return std::find(kRefusalReasons.begin(), kRefusalReasons.end(), code) != kRefusalReasons.end();
}

// It had begun when its server, or the one behind the gateway, went.
bool IsLost(std::string_view code) { return code == "stopped" || code == "backend_lost"; }

int HttpStatusOf(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return 200;
    case StatusCode::kCancelled:
      return kClientGone;
    case StatusCode::kUnauthenticated:
      return 401;
    case StatusCode::kPermissionDenied:
      return 403;
    case StatusCode::kResourceExhausted:
      return 429;
    case StatusCode::kUnavailable:
      return 503;
    case StatusCode::kInvalidArgument:
    case StatusCode::kOutOfRange:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kNotFound:
    case StatusCode::kAlreadyExists:
    case StatusCode::kAborted:
    case StatusCode::kUnimplemented:
      return 400;
    default:
      return 500;
  }
}

}  // namespace

RequestEnd EndOfAnswer(int status, std::string_view code, bool has_begun) {
  if (status < 400) return {RequestOutcome::kOk};
  if (status == kClientGone) return {RequestOutcome::kCancelled};
  if (has_begun) return {RequestOutcome::kError};
  if (status == 401) return RefusedFor("unauthenticated");
  if (status == 403) return RefusedFor("forbidden");
  if (status == 429) return RefusedFor(code);
  if (status == 503 && !IsLost(code)) return RefusedFor(IsReason(code) ? code : "unavailable");
  if (status < 500 || status == 501) return RefusedFor("invalid");
  return {RequestOutcome::kError};
}

RequestEnd EndOfCall(const RpcError& outcome, bool has_begun) {
  return EndOfAnswer(HttpStatusOf(outcome.code), LowerCase(outcome.reason), has_begun);
}

}  // namespace tramontane
