#include "server/call/request_line.h"

namespace tramontane {

const char* RequestOutcomeName(RequestOutcome outcome) {
  constexpr const char* kNames[] = {"ok", "cancelled", "error", "refused"};
  return kNames[static_cast<size_t>(outcome)];
}

RequestOutcome OutcomeOf(StatusCode code, const std::string& reason, bool has_begun) {
  if (code == StatusCode::kOk) return RequestOutcome::kOk;
  if (code == StatusCode::kCancelled) return RequestOutcome::kCancelled;
  const bool is_servers_fault = code == StatusCode::kInternal || code == StatusCode::kDeadlineExceeded ||
                                code == StatusCode::kUnknown || reason == "STOPPED" ||
                                reason == "BACKEND_LOST";
  return has_begun || is_servers_fault ? RequestOutcome::kError : RequestOutcome::kRefused;
}

RequestOutcome OutcomeOfHttp(int status, const std::string& code, bool has_begun) {
  if (status < 400) return RequestOutcome::kOk;
  if (status == kClientGone) return RequestOutcome::kCancelled;
  const bool is_servers_fault = has_begun || status == 500 || status == 502 || status == 504 ||
                                code == "stopped" || code == "backend_lost";
  return is_servers_fault ? RequestOutcome::kError : RequestOutcome::kRefused;
}

}  // namespace tramontane
