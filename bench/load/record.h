// What one request of a run was to be, and what became of it. Plain values.
// Times are nanoseconds of CLOCK_MONOTONIC; in a plan they count from the start of the run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tramontane::load {

// One request as the schedule has it, drawn before the run begins.
struct PlannedRequest {
  int64_t index = 0;
  int64_t intended_ns = 0;  // from the start of the run; closed loop: 0, the slot that falls free decides
  int32_t input_tokens = 0;
  int32_t output_tokens = 0;
  int32_t class_index = 0;  // into the classes of the work; 0 where there is one
};

// How a request ended. Every request of a run has exactly one.
enum class Outcome {
  kOk,
  kRefused,      // no connection
  kTimeout,      // no end within the limit, whatever came before
  kHttpError,    // an answer with another status than 200; RequestRecord::status tells which
  kStreamError,  // an error event, a finish that says so, or a gRPC status, before the end; also after tokens
  kClosedEarly,  // the connection ended before a finish reason or [DONE]
  kGarbage,      // not HTTP, not chunks, not server-sent events, not JSON
  kNoContent,    // a proper end, and nothing before it that an answer is told by
  kUnfinished,   // under way when the run's drain time was over
};

// Where the count of output tokens comes from.
enum class TokenCountFrom { kUsage, kIds, kLogprobs, kTokenizer, kEvents };

// Everything that is known of one request after its end.
struct RequestRecord {
  int64_t index = 0;
  int32_t class_index = 0;
  std::string request_id;
  int64_t intended_ns = 0;  // CLOCK_MONOTONIC, as all below
  int64_t sent_ns = 0;      // just before connect, or the first send on a kept connection
  std::optional<int64_t> connected_ns;
  std::optional<int64_t> headers_ns;    // the read that brought the last header byte
  std::optional<int64_t> first_any_ns;  // the first event with non-empty choices
  std::vector<int64_t> content_ns;      // one for each content event, ascending
  std::optional<int64_t> done_ns;       // [DONE], else the end of the stream
  int32_t input_tokens = 0;             // by usage; what was asked where the server does not tell
  int32_t output_tokens = 0;
  TokenCountFrom output_tokens_from = TokenCountFrom::kEvents;
  int32_t status = 0;  // HTTP's; of gRPC its code; 0 where none came
  Outcome outcome = Outcome::kOk;
  std::optional<double> retry_after_s;
  int32_t reconnects = 0;   // kept connections that were closed before any byte of the answer
  std::string error;        // one line; empty where outcome is kOk
  std::string timing_json;  // the server's `timing` object, where it was asked for and came
};

// The key of an outcome in `failures` and in a line of --jsonl: "ok", "refused", "http_429"...
std::string OutcomeName(Outcome outcome, int32_t status);
std::string_view TokenCountFromName(TokenCountFrom from);

// `text` with three stars for each time it has `secret`, found from the left; none where that is empty.
// Letters of either case are alike, characters may be written as JSON escapes, and as texts are cut, at the
// end of one the first kSecretPart characters of a secret are enough.
inline constexpr size_t kSecretPart = 4;
std::string WithoutSecret(std::string_view text, std::string_view secret);

// UTF-8 on one line: control characters, of C1 too, and those that turn the direction of text become
// "\u001b", blanks become spaces, what is not UTF-8 becomes U+FFFD.
std::string VisibleText(std::string_view text);

// What others wrote, fit for a terminal and a report: WithoutSecret, then VisibleText, then what is longer
// than kMaxServerTextBytes cut and "..." behind it. In this order, since half a secret is one too.
inline constexpr size_t kMaxServerTextBytes = 200;
std::string ServerText(std::string_view text, std::string_view secret);

}  // namespace tramontane::load
