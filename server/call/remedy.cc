#include "server/call/remedy.h"

#include <algorithm>
#include <string_view>

namespace tramontane {
namespace {

struct Row {
  std::string_view reason;
  Remedy remedy;
};
constexpr Row kRows[] = {
    // A queue or a table is full: it empties, and it is one server's.
    {"QUEUE_FULL", Remedy::kRoom},
    {"INPUT_QUEUE_FULL", Remedy::kRoom},
    {"TOO_MANY_STREAMS", Remedy::kRoom},
    {"TOO_MANY_CALLS", Remedy::kRoom},
    {"UNREAD_ANSWERS", Remedy::kRoom},
    // A key's own requests are in the way, wherever they run.
    {"KEY_CONCURRENCY", Remedy::kTime},
    {"KEY_REQUESTS", Remedy::kTime},
    {"KEY_TOKENS", Remedy::kTime},
    // Others use what is asked for, and it is on this server alone: a session has one home.
    {"TOO_MANY_SESSIONS", Remedy::kTime},
    {"SESSION_FILES_BUSY", Remedy::kTime},
    {"SESSION_IN_USE", Remedy::kTime},
    {"DUPLICATE_REQUEST_ID", Remedy::kTime},
    // What the request itself is or took: the session holds another conversation, its file is of another
    // model or too
    // large, the message is, the request has spent what it may.
    {"SESSION_DIFFERS", Remedy::kNone},
    {"SESSION_CANNOT_GO_ON", Remedy::kNone},
    {"SESSION_FILE_UNUSABLE", Remedy::kNone},
    {"SESSION_TOO_LARGE", Remedy::kNone},
    {"MESSAGE_TOO_LARGE", Remedy::kNone},
    {"REQUEST_LIMIT", Remedy::kNone},
    // The server does not serve, not yet or no longer.
    {"LOADING", Remedy::kOtherServer},
    {"DRAINING", Remedy::kOtherServer},
    {"STOPPED", Remedy::kOtherServer},
    {"STALLED", Remedy::kOtherServer},
    {"BACKEND_LOST", Remedy::kOtherServer},
    {"NO_BACKEND", Remedy::kTime},
};

}  // namespace

Remedy RemedyOf(const RpcError& error) {
  const auto* found = std::find_if(std::begin(kRows), std::end(kRows),
                                   [&error](const Row& row) { return row.reason == error.reason; });
  if (found != std::end(kRows)) return found->remedy;
  switch (error.code) {
    case StatusCode::kUnavailable:
      return Remedy::kOtherServer;
    case StatusCode::kResourceExhausted:
      return Remedy::kRoom;
    case StatusCode::kAborted:
    case StatusCode::kAlreadyExists:
      return Remedy::kTime;
    default:
      return Remedy::kNone;
  }
}

}  // namespace tramontane
