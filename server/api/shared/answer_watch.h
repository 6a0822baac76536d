// AnswerWatch: what the gateway counts of one request: its answer's begin and its end, each once,
// before the bytes that a client sees it by leave. One for an exchange, and one for what the transport
// answers in its stead. Any thread, one call at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "server/api/shared/answer_record.h"
#include "server/api/shared/http_counts.h"
#include "server/call/caller.h"
#include "server/http/http.h"
#include "server/watch/request_counts.h"

namespace tramontane {

class AnswerWatch {
 public:
  AnswerWatch() = default;  // of nobody's concern
  // `path`: of its route; "": none. `requests`: null where it generates nothing. `request` outlives it.
  AnswerWatch(std::shared_ptr<HttpCounts> http, std::shared_ptr<RequestCounts> requests,
              std::string_view path, const HttpRequest& request)
      : http_(std::move(http)), requests_(std::move(requests)), path_(path), request_(&request) {}

  // The answer begins, and nothing more is known of it.
  void OnBegin(int status) {
    if (http_ != nullptr) http_->Count(path_, request_->method, status);
  }
  // The whole answer.
  void OnWhole(const HttpResponse& response, int64_t now_ns) {
    OnRefused(response);
    ObserveDuration(now_ns);
  }
  // The same of what the transport, or its look at the header, answers.
  void OnRefused(const HttpResponse& response) {
    OnBegin(response.status);
    Count(EndOfAnswer(response.status, response.error_code, /*has_begun=*/false));
  }
  // What OnBegin was told of has ended, as if it had begun with this status.
  void OnEnd(int status, int64_t now_ns) {
    Count(EndOfAnswer(status, "", /*has_begun=*/true));
    ObserveDuration(now_ns);
  }
  // Nobody waits for it any more; after its end this does nothing.
  void OnHangUp() { Count({RequestOutcome::kCancelled}); }

 private:
  void Count(const RequestEnd& end) {
    if (requests_ == nullptr) return;
    const auto requests = std::exchange(requests_, nullptr);
    const std::shared_ptr<AnswerRecord> record = RecordOf(*request_);
    if (record != nullptr && record->is_counted.exchange(true)) return;
    requests->NoteEnd(record == nullptr ? Caller() : record->caller, end);
  }
  void ObserveDuration(int64_t now_ns) const {
    if (http_ != nullptr && !path_.empty()) http_->ObserveDuration(path_, now_ns - request_->first_byte_ns);
  }

  std::shared_ptr<HttpCounts> http_;
  std::shared_ptr<RequestCounts> requests_;  // null: counted, or it generates nothing
  std::string_view path_;
  const HttpRequest* request_ = nullptr;
};

}  // namespace tramontane
