// RequestEnd: how a request that generates or scores ended, in the few words that /metrics has for it. One
// list for both doors. Plain values and pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "server/call/request_line.h"
#include "server/call/rpc_error.h"

namespace tramontane {

// By RequestOutcome.
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

// An answer over HTTP that is whole: its status, and the code of its error.
RequestEnd EndOfAnswer(int status, std::string_view code);
// A call. `was_taken`: its client was told so before; such a one is no longer refused.
RequestEnd EndOfCall(const RpcError& outcome, bool was_taken);

}  // namespace tramontane
