// RequestLine: what there is to say of one request when it has ended, whichever door it came through. A plain
// value.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "server/call/request_end.h"

namespace tramontane {

// Strings are as they came, of any bytes; "", and numbers below 0: not known, or it has none.
struct RequestLine {
  bool generates = false;  // else it is told of only where it did not go well, or somebody looks closer
  std::string id = {};     // that its client knows it by: x-request-id
  std::string key = {};    // name of its caller's key
  std::string route = {};  // "/v1/chat/completions", "/tramontane.v1.Inference/Generate"
  std::string model = {};
  int64_t prompt_tokens = -1;  // of all its prompts
  int64_t output_tokens = -1;  // of all choices
  double ttft_ms = -1;         // from its first byte to the first content that was handed to the system
  double e2el_ms = 0;          // and to the end of the answer
  std::string status = {};     // "200", "INVALID_ARGUMENT"
  RequestOutcome outcome = RequestOutcome::kOk;
  std::string trace_id = {};

  // Where there are any.
  int64_t cached_tokens = -1;
  double queue_ms = -1;             // of the choice that ended last
  std::string reason = {};          // by choice, as they ended: "stop,length"
  std::string correlation_id = {};  // over gRPC
  std::string error = {};           // of what did not go well, for programs: "key_concurrency"
  std::string message = {};         // and for people, where the fault is the server's
  std::string prompt = {};          // where the log has prompts
};

// Where lines go.
struct RequestLog {
  // Any thread; must not wait. Null: nowhere.
  std::function<void(const RequestLine& line)> tell = {};
  bool prompts = false;  // lines have them
};

// Of what is longer the rest is left out.
inline constexpr size_t kMaxLoggedPromptBytes = 1024;
inline constexpr size_t kMaxLoggedFieldBytes = 256;  // of any other

}  // namespace tramontane
