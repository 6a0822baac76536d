// AnswerRecord: one HTTP request from its header to its end, for the line that the log has of it. It hangs
// on the request (HttpRequest::attached), whoever answers.
//
// Any thread. Always: its line is told once: when the answer is complete, or, where the client went before
// that, when nothing works for the request any more.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/api/shared/api_error.h"
#include "server/call/caller.h"
#include "server/call/request_line.h"
#include "server/call/trace_context.h"
#include "server/http/http.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

class AnswerRecord {
 public:
  AnswerRecord() = default;  // whose line nobody is told
  // `route`: whose endpoint it is for; `generates`: as RequestLine's.
  AnswerRecord(RequestLog log, std::string route, bool generates)
      : log_(std::move(log)), line_({.generates = generates, .route = std::move(route)}) {}
  ~AnswerRecord();
  AnswerRecord(const AnswerRecord&) = delete;
  AnswerRecord& operator=(const AnswerRecord&) = delete;

  Caller caller;  // set, as the id, before anybody else sees it
  // Its end is in /metrics (AnswerWatch). Whoever sets it counts.
  std::atomic<bool> is_counted{false};

  void NoteId(const std::string& id);
  // What is asked for.
  void NoteCalls(const std::vector<v1::GenerateRequest>& requests, const v1::GenerateRequest& shared);
  void NoteScores(const v1::ScoreCandidatesRequest& request);
  void NoteScored(const v1::ScoreCandidatesResponse& response);
  // What call `call` has said.
  void NoteEvent(size_t call, const v1::GenerateResponse& event);
  void NoteContent();  // the first for the client is there; then again does nothing
  void NoteHead();     // of a stream: it is on its way
  // Why the answer is no good. `midway`: part of it has left.
  void NoteError(const ApiError& error, bool midway = false);

  // The answer is complete.
  void Tell(int status);

 private:
  void TellLocked(int status, RequestOutcome outcome);
  double MsSinceBegin() const;

  const RequestLog log_ = {};
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();

  std::mutex mutex_;  // guards what follows
  RequestLine line_;
  // [calls][choices], as far as they have said anything.
  std::vector<std::vector<int64_t>> output_tokens_;
  bool has_begun_ = false;  // a call has
  bool has_head_ = false;
  int failed_status_ = 0;  // of an answer that failed midway: what it would have been else
  bool told_ = false;
};

// Null: nobody has attached one.
inline std::shared_ptr<AnswerRecord> RecordOf(const HttpRequest& request) {
  return std::static_pointer_cast<AnswerRecord>(request.attached);
}

// The trace of a request, from its header.
TraceContext TraceOf(const HttpRequest& request);

}  // namespace tramontane
