// RequestEnd: how a request ended, in the few words that the log and /metrics have for it. One list for both
// doors. Plain values and pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "server/call/rpc_error.h"

namespace tramontane {

enum class RequestOutcome : size_t {
  kOk,
  kCancelled,  // by its client: it went, or said so
  kError,      // what the server had taken did not end well
  kRefused,    // it was not taken: a fault of it, no key, no room
};
inline constexpr std::array<const char*, 4> kRequestOutcomes = {"ok", "cancelled", "error", "refused"};

// Why it was refused: codes of a 429 and of the transport's 503, and words for all others.
inline constexpr std::array<const char*, 23> kRefusalReasons = {"invalid",
                                                                "unauthenticated",
                                                                "forbidden",
                                                                "draining",
                                                                "unavailable",
                                                                "queue_full",
                                                                "input_queue_full",
                                                                "too_many_streams",
                                                                "too_many_calls",
                                                                "too_many_sessions",
                                                                "session_files_busy",
                                                                "unread_answers",
                                                                "key_concurrency",
                                                                "key_requests",
                                                                "key_tokens",
                                                                "slo_unattainable",
                                                                "request_limit",
                                                                "too_many_connections",
                                                                "too_many_waiting_requests",
                                                                "too_many_unread_answer_bytes",
                                                                "too_many_body_bytes",
                                                                "message_too_large",
                                                                "other"};

struct RequestEnd {
  RequestOutcome outcome = RequestOutcome::kOk;
  size_t reason = 0;  // of kRefused: its index in kRefusalReasons
};

inline constexpr int kClientGone = 499;  // of an answer: there was nobody to answer

// An answer over HTTP: its status, or what that would have been had it not begun, and the code of its error.
// `has_begun`: what it asks for was begun; such a one is no longer refused.
RequestEnd EndOfAnswer(int status, std::string_view code, bool has_begun);
// The same of a call.
RequestEnd EndOfCall(const RpcError& outcome, bool has_begun);

}  // namespace tramontane
