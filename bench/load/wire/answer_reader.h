// One answer, from the first byte of its head to its end: what the bytes of each read mean for the request's
// record. No sockets and no clock: stamps come with the bytes.
// One thread at a time.
//
// Always: the same bytes give the same record but for the stamps, however reads cut them; and each stamp is
// that of the read which brought the byte that completed what is stamped.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "bench/load/record.h"
#include "bench/load/wire/answer_event.h"
#include "bench/load/wire/event_stream_parser.h"
#include "bench/load/wire/http_reply_parser.h"

namespace tramontane::load {

// What one answer may hold for its record, however much a server sends: kMaxEventBytes of an event, and
inline constexpr size_t kMaxContentEvents = size_t{1} << 20;  // 8 bytes each; one more is garbage
inline constexpr size_t kMaxTimingBytes = 4096;
inline constexpr size_t kMaxCountedTextBytes = size_t{4} << 20;  // what is behind them is not counted

// What is the same for all answers of a run.
struct AnswerRules {
  // Counts the tokens of an output's text, where the server does not tell. Any thread; null: there is none.
  std::function<int32_t(const std::string& text)> count_tokens;
  std::string secret;         // what servers may repeat and no record may hold; empty: nothing
  bool wants_timing = false;  // keeps the `timing` object; one of more than kMaxTimingBytes is not kept
};

class AnswerReader {
 public:
  // Both outlive the reader; `record` is written until complete().
  AnswerReader(RequestRecord* record, const AnswerRules& rules) : record_(record), rules_(&rules) {}

  // The bytes of one read.
  void Read(std::string_view bytes, int64_t at_ns);
  // The connection is closed, or broken: `how` for people.
  void Close(int64_t at_ns, const std::string& how);
  // Ends the record from outside: the deadline, no connection, the run's end.
  void Abandon(Outcome outcome, const std::string& error);

  // The record has its outcome; what comes now changes nothing in it.
  bool complete() const { return complete_; }
  bool has_bytes() const { return has_bytes_; }
  // The reply is over, and its connection can carry another request.
  bool reusable() const { return http_.ended() && !has_excess_ && !is_garbage_ && http_.head().keep_alive; }
  // Whether the end of the reply may still come: a complete one is worth waiting for a little.
  bool awaits_end() const {
    return http_.has_head() && http_.head().keep_alive && !http_.ended() && !is_garbage_;
  }

 private:
  void ReadBody(std::string_view body, int64_t at_ns);
  void ReadEvent(const ServerSentEvent& event, int64_t at_ns);
  void ReadHead(int64_t at_ns);
  void EndOfMessage(int64_t at_ns);
  void FinishProperly(int64_t at_ns, const std::string& end);
  void Finish(Outcome outcome, const std::string& error);
  void CountOutput();

  RequestRecord* record_;
  const AnswerRules* rules_;
  HttpReplyParser http_;
  EventStreamParser events_;
  std::string error_body_;  // of an answer that is no stream; its first kMaxErrorBodyBytes
  std::string text_;        // where it is to be counted; its first kMaxCountedTextBytes
  int64_t ids_ = 0;
  int64_t logprobs_ = 0;
  bool has_usage_ = false;
  bool has_finish_ = false;
  bool has_bytes_ = false;
  bool has_excess_ = false;  // bytes behind the end of the reply
  bool is_garbage_ = false;
  bool complete_ = false;
};

}  // namespace tramontane::load
