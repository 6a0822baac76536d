#include "bench/load/wire/event_stream_parser.h"

#include <algorithm>

#include "kernels/core/utf8.h"

namespace tramontane::load {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr size_t kKeptBytes = 16 * 1024;  // enough for most events; a longer one's memory is given back

bool IsFieldName(std::string_view name) {
  return std::all_of(name.begin(), name.end(), [](char c) {
    return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
  });
}

// "data" of "data: x"; all of it where there is no colon.
std::string_view NameOf(std::string_view line) {
  return line.substr(0, std::min(line.find(':'), line.size()));
}

}  // namespace

std::optional<ServerSentEvent> EventStreamParser::Next(std::string_view* bytes) {
  if (clear_) {
    name_.clear();
    data_.clear();
    if (data_.capacity() > kKeptBytes) data_.shrink_to_fit();
    has_data_ = clear_ = false;
  }
  std::string_view line;
  while (fault_.empty() && TakeLine(bytes, &line)) {
    const bool is_blank = line.empty();
    if (!is_blank) ReadField(line);
    held_.clear();
    if (held_.capacity() > kKeptBytes) held_.shrink_to_fit();
    if (!is_blank) continue;
    if (has_data_) {
      clear_ = true;
      return ServerSentEvent{name_, data_};
    }
    name_.clear();
  }
  return std::nullopt;
}

// True: `line` is whole, without its end; a view of `bytes` or of held_, which the caller empties.
bool EventStreamParser::TakeLine(std::string_view* bytes, std::string_view* line) {
  if (after_cr_ && !bytes->empty()) {
    if (bytes->front() == '\n') bytes->remove_prefix(1);
    after_cr_ = false;
  }
  const char* const begin = bytes->data();
  const char* const stop = begin + bytes->size();
  const char* at = begin;
  while (at != stop && *at != '\n' && *at != '\r') ++at;
  const auto end = static_cast<size_t>(at - begin);
  if (held_.size() + data_.size() + end > kMaxEventBytes) {
    Fail("an event of more than " + std::to_string(kMaxEventBytes) + " bytes");
    return false;
  }
  const bool whole = end < bytes->size();
  if (!whole || !held_.empty()) held_.append(*bytes, 0, end);
  *line = held_.empty() ? bytes->substr(0, end) : std::string_view(held_);
  if (whole) after_cr_ = (*bytes)[end] == '\r';
  bytes->remove_prefix(whole ? end + 1 : end);
  if (whole && at_start_) {
    if (line->starts_with(kByteOrderMark)) line->remove_prefix(kByteOrderMark.size());
    at_start_ = false;
  }
  return whole;
}

void EventStreamParser::ReadField(std::string_view line) {
  if (line.front() == ':') return;
  const std::string_view name = NameOf(line);
  std::string_view value = line.substr(std::min(name.size() + 1, line.size()));
  if (value.starts_with(' ')) value.remove_prefix(1);
  const bool is_error = name == "error";
  if (name == "data" || is_error) {
    if (is_error) name_ = "error";
    if (has_data_) data_.push_back('\n');
    data_.append(value);
    has_data_ = true;
  } else if (name == "event") {
    name_.assign(value);
  } else if (!IsFieldName(name)) {
    FailAt(line);
  }
}

void EventStreamParser::End() {
  std::string_view line = held_;
  if (at_start_ && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  if (fault_.empty() && !IsFieldName(NameOf(line))) {
    FailAt(line);
  }
}

void EventStreamParser::FailAt(std::string_view line) {
  constexpr size_t kShownBytes = 1024;
  Fail("not a line of server-sent events: " + std::string(line.substr(0, kShownBytes)));
}

void EventStreamParser::Fail(const std::string& what) { fault_ = what; }

}  // namespace tramontane::load
