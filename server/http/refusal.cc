#include "server/http/refusal.h"

namespace tramontane {
namespace {

constexpr int64_t kRetryAfterStopMs = 2000;  // another server, or the next one, by then
constexpr int64_t kRetryAfterFullMs = 1000;

}  // namespace

HttpRefusal ServerStops() {
  return {.status = 503,
          .message = "the server is shutting down",
          .reason = "draining",
          .retry_after_ms = kRetryAfterStopMs};
}

HttpRefusal TooManyConnections() {
  return {.status = 503,
          .message = "the most connections are open, and none of them waits for its next request",
          .reason = "too_many_connections",
          .retry_after_ms = kRetryAfterFullMs};
}

HttpRefusal TooManyWaiting() {
  return {.status = 503,
          .message = "the most requests wait to be read, of all clients or of this one",
          .reason = "too_many_waiting_requests",
          .retry_after_ms = kRetryAfterFullMs};
}

HttpRefusal TooManyUnreadBytes(int64_t most) {
  return {.status = 503,
          .message = "the answers that clients have not taken hold " + std::to_string(most) +
                     " bytes together, or too many of them are this client's",
          .reason = "too_many_unread_answer_bytes",
          .retry_after_ms = kRetryAfterFullMs};
}

HttpRefusal TooManyBodyBytes(int64_t most) {
  return {.status = 503,
          .message = "the requests being read hold more than " + std::to_string(most) +
                     " bytes together, or too many of them are this client's",
          .reason = "too_many_body_bytes",
          .retry_after_ms = kRetryAfterFullMs};
}

HttpResponse PlainRefusal(const HttpRefusal& refusal, const HttpRequest& /*request*/) {
  HttpResponse response;
  response.status = refusal.status;
  response.content_type = "text/plain";
  response.body = (refusal.reason.empty() ? "" : refusal.reason + ": ") + refusal.message + "\n";
  AddRetryAfter(refusal.retry_after_ms, &response.headers);
  return response;
}

void AddRetryAfter(int64_t retry_after_ms, HttpHeaders* headers) {
  if (retry_after_ms <= 0) return;
  headers->emplace_back("retry-after", std::to_string((retry_after_ms + 999) / 1000));
  headers->emplace_back("retry-after-ms", std::to_string(retry_after_ms));
}

}  // namespace tramontane
