#include "bench/load/wire/answer_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <optional>
#include <utility>

namespace tramontane::load {
namespace {

constexpr size_t kMaxErrorBodyBytes = 64 * 1024;
constexpr std::string_view kDone = "[DONE]";

std::optional<double> Seconds(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size() && !text.empty();
  return whole && std::isfinite(value) && value >= 0 ? std::optional<double>(value) : std::nullopt;
}

// What a reply says of when to try again: milliseconds, seconds, or a date.
std::optional<double> RetryAfterSeconds(const ReplyHead& head) {
  if (const std::optional<double> ms = Seconds(head.retry_after_ms)) return *ms / 1000;
  if (head.retry_after.empty()) return std::nullopt;
  if (const std::optional<double> seconds = Seconds(head.retry_after)) return seconds;
  std::tm date{};
  if (strptime(head.retry_after.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &date) == nullptr) return std::nullopt;
  return std::max(0.0, std::difftime(timegm(&date), std::time(nullptr)));
}

std::string_view WithoutSpaces(std::string_view text) {
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return text;
}

bool EqualsInLowerCase(std::string_view text, std::string_view lower_case) {
  return std::equal(text.begin(), text.end(), lower_case.begin(), lower_case.end(), [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
  });
}

// Of an error event, or of an error's body: its message, else all of it. A full parser takes many times the
// bytes of a text, so of a long one there is no message.
std::string WhyOf(std::string_view error_data) {
  if (error_data.size() > kMaxErrorBodyBytes) return std::string(error_data.substr(0, kMaxErrorBodyBytes));
  std::string message = ErrorMessageOf(error_data);
  return message.empty() ? std::string(error_data) : message;
}

}  // namespace

void AnswerReader::Read(std::string_view bytes, int64_t at_ns) {
  has_bytes_ = has_bytes_ || !bytes.empty();
  const bool had_head = http_.has_head();
  const bool had_ended = http_.ended();
  std::string_view body;
  bool saw_head = had_head;
  while (http_.Next(&bytes, &body)) {
    if (!saw_head) ReadHead(at_ns);
    saw_head = true;
    if (!complete_) ReadBody(body, at_ns);
  }
  if (!saw_head && http_.has_head()) ReadHead(at_ns);
  if (!http_.fault().empty()) {
    is_garbage_ = true;
    Finish(Outcome::kGarbage, http_.fault());
  }
  has_excess_ = has_excess_ || !bytes.empty();
  if (http_.ended() && !had_ended) EndOfMessage(at_ns);
}

void AnswerReader::ReadHead(int64_t at_ns) {
  if (complete_) return;
  const ReplyHead& head = http_.head();
  record_->headers_ns = at_ns;
  record_->status = head.status;
  record_->retry_after_s = RetryAfterSeconds(head);
  const bool is_plain = head.content_encoding.empty() || EqualsInLowerCase(head.content_encoding, "identity");
  if (head.status == 200 && !is_plain) {
    Finish(Outcome::kGarbage,
           "an encoding that was not asked for, content-encoding: " + head.content_encoding);
  }
}

void AnswerReader::ReadBody(std::string_view body, int64_t at_ns) {
  if (record_->status != 200) {
    error_body_.append(body.substr(0, kMaxErrorBodyBytes - std::min(error_body_.size(), kMaxErrorBodyBytes)));
    return;
  }
  while (!complete_) {
    const std::optional<ServerSentEvent> event = events_.Next(&body);
    if (!events_.fault().empty()) Finish(Outcome::kGarbage, events_.fault());
    if (!event) return;
    ReadEvent(*event, at_ns);
  }
}

void AnswerReader::ReadEvent(const ServerSentEvent& event, int64_t at_ns) {
  if (WithoutSpaces(event.data) == kDone) {
    return FinishProperly(at_ns, "[DONE]");
  }
  if (event.name == "error") return Finish(Outcome::kStreamError, WhyOf(event.data));
  if (WithoutSpaces(event.data).empty()) return;  // what some servers send to keep a stream alive
  std::string fault;
  const std::optional<AnswerEvent> read = ReadAnswerEvent(event.data, &fault);
  if (!read) return Finish(Outcome::kGarbage, fault);
  if (read->is_error) return Finish(Outcome::kStreamError, WhyOf(event.data));
  if (read->fails) {
    return Finish(Outcome::kStreamError, "a choice ended with an error: " + std::string(event.data));
  }
  if (read->has_choices && !record_->first_any_ns) record_->first_any_ns = at_ns;
  if (read->has_content) {
    if (record_->content_ns.size() == kMaxContentEvents) {
      return Finish(Outcome::kGarbage,
                    "more than " + std::to_string(kMaxContentEvents) + " content events in one answer");
    }
    record_->content_ns.push_back(at_ns);
    if (rules_->count_tokens) {
      const std::string text = ContentTextOf(event.data);
      text_.append(text, 0, kMaxCountedTextBytes - text_.size());
    }
  }
  ids_ += read->ids;
  logprobs_ += read->logprobs;
  has_finish_ = has_finish_ || read->finishes;
  if (read->prompt_tokens) record_->input_tokens = *read->prompt_tokens;
  if (read->completion_tokens) {
    record_->output_tokens = *read->completion_tokens;
    has_usage_ = true;
  }
  if (read->has_timing && rules_->wants_timing) {
    std::string timing = WithoutSecret(TimingOf(event.data), rules_->secret);
    if (timing.size() <= kMaxTimingBytes) record_->timing_json = std::move(timing);
  }
}

// The message ended as its head had announced.
void AnswerReader::EndOfMessage(int64_t at_ns) {
  if (complete_) return;
  if (record_->status != 200) {
    const std::string why = WhyOf(error_body_);
    return Finish(Outcome::kHttpError,
                  "HTTP " + std::to_string(record_->status) + (why.empty() ? "" : ": " + why));
  }
  events_.End();
  if (!events_.fault().empty()) return Finish(Outcome::kGarbage, events_.fault());
  if (!has_finish_ && !record_->content_ns.empty()) {
    record_->done_ns = at_ns;
    return Finish(Outcome::kClosedEarly, "the stream ended with neither a finish reason nor [DONE]");
  }
  FinishProperly(at_ns, "its end");
}

// An answer may have no token: a finish reason tells of it, or a count of none.
void AnswerReader::FinishProperly(int64_t at_ns, const std::string& end) {
  record_->done_ns = at_ns;
  const bool is_answer =
      !record_->content_ns.empty() || has_finish_ || (has_usage_ && record_->output_tokens == 0);
  Finish(is_answer ? Outcome::kOk : Outcome::kNoContent, "neither content nor a finish reason before " + end);
}

void AnswerReader::Close(int64_t at_ns, const std::string& how) {
  if (complete_) return;
  const bool was_ended = http_.ended();
  if (http_.Close() && !was_ended && has_finish_) return EndOfMessage(at_ns);
  const bool is_error_reply = http_.has_head() && record_->status != 200;
  if (is_error_reply) return EndOfMessage(at_ns);
  if (has_finish_) return FinishProperly(at_ns, "its end");
  events_.End();
  if (!events_.fault().empty()) return Finish(Outcome::kGarbage, events_.fault());
  const std::string place = !has_bytes_         ? " before any byte of the answer"
                            : !http_.has_head() ? " inside the head of the answer"
                                                : " before a finish reason or [DONE]";
  Finish(Outcome::kClosedEarly, how + place);
}

void AnswerReader::Abandon(Outcome outcome, const std::string& error) { Finish(outcome, error); }

void AnswerReader::Finish(Outcome outcome, const std::string& error) {
  if (complete_) return;
  complete_ = true;
  is_garbage_ = is_garbage_ || outcome == Outcome::kGarbage;
  record_->outcome = outcome;
  if (outcome != Outcome::kOk) record_->error = ServerText(error, rules_->secret);
  CountOutput();
}

void AnswerReader::CountOutput() {
  const int64_t events = static_cast<int64_t>(record_->content_ns.size());
  // Some servers send a count of 0 with their first event and no other.
  if (has_usage_ && (record_->output_tokens > 0 || events == 0)) {
    record_->output_tokens_from = TokenCountFrom::kUsage;
  } else if (ids_ > 0) {
    record_->output_tokens = static_cast<int32_t>(ids_);
    record_->output_tokens_from = TokenCountFrom::kIds;
  } else if (logprobs_ > 0) {
    record_->output_tokens = static_cast<int32_t>(logprobs_);
    record_->output_tokens_from = TokenCountFrom::kLogprobs;
  } else if (rules_->count_tokens && events > 0) {
    record_->output_tokens = rules_->count_tokens(text_);
    record_->output_tokens_from = TokenCountFrom::kTokenizer;
  } else {
    record_->output_tokens = static_cast<int32_t>(events);
    record_->output_tokens_from = TokenCountFrom::kEvents;
  }
}

}  // namespace tramontane::load
