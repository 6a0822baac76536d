#include "server/api/shared/answer_room.h"

#include <string>

#include "server/call/rpc_error.h"

namespace tramontane {

std::optional<ApiError> AnswerRoom::Hold(int64_t bytes) {
  if (max_bytes_ > 0 && bytes > max_bytes_) {
    RpcError error =
        BusyError("REQUEST_LIMIT", "the answer has grown to " + std::to_string(bytes) + " bytes; at most " +
                                       std::to_string(max_bytes_) + " are allowed (max_answer_bytes)");
    error.retry_after_ms = 0;  // it would again
    return ToApiError(error);
  }
  if (!held_ || bytes == held_->bytes() || held_->TrySet(bytes)) return std::nullopt;
  return ToApiError(UnavailableError("TOO_MANY_ANSWER_BYTES",
                                     "the answers that clients have not taken yet hold more than " +
                                         std::to_string(held_->budget().max_bytes()) +
                                         " bytes together (max_unread_answer_bytes)"));
}

}  // namespace tramontane
