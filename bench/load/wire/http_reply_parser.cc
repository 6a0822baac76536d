#include "bench/load/wire/http_reply_parser.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "kernels/core/utf8.h"

namespace tramontane::load {
namespace {

constexpr std::string_view kVersion = "HTTP/1.";

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string Lowered(std::string_view text) {
  std::string lowered(text);
  std::transform(lowered.begin(), lowered.end(), lowered.begin(), Lower);
  return lowered;
}

std::string_view WithoutBlanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// All of `text` as a number that is not negative; nothing where it is none, or too large.
std::optional<int64_t> WholeNumber(std::string_view text, int base) {
  int64_t value = 0;
  if (text.empty() || text.front() == '-') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Enough of it to know it by.
std::string Beginning(std::string_view text) {
  constexpr size_t kShownBytes = 1024;
  return std::string(text.substr(0, kShownBytes));
}

bool IsNameCharacter(char c) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  const char lower = Lower(c);
  return IsDigit(c) || (lower >= 'a' && lower <= 'z') || kMarks.find(c) != std::string_view::npos;
}

// Whether a list of tokens, "keep-alive, Upgrade", has `token`; both in lower case.
bool Lists(std::string_view list, std::string_view token) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (WithoutBlanks(list.substr(0, comma)) == token) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

}  // namespace

bool HttpReplyParser::Next(std::string_view* bytes, std::string_view* body) {
  while (!bytes->empty()) {
    switch (stage_) {
      case Stage::kEnded:
      case Stage::kFault:
        return false;
      case Stage::kLengthBody:
      case Stage::kBodyToClose:
      case Stage::kChunk:
        return TakeBody(bytes, body);
      default:
        if (TakeLine(bytes)) ReadLine();
    }
  }
  return false;
}

bool HttpReplyParser::TakeBody(std::string_view* bytes, std::string_view* body) {
  size_t count = bytes->size();
  if (stage_ != Stage::kBodyToClose) {
    count = static_cast<size_t>(std::min(static_cast<int64_t>(count), left_));
    left_ -= static_cast<int64_t>(count);
    if (left_ == 0) stage_ = stage_ == Stage::kChunk ? Stage::kChunkEnd : Stage::kEnded;
  }
  *body = bytes->substr(0, count);
  bytes->remove_prefix(count);
  return true;
}

// True when line_ is whole. A line ends with LF; a CR before it is not part of it.
bool HttpReplyParser::TakeLine(std::string_view* bytes) {
  const size_t end = bytes->find('\n');
  const size_t count = end == std::string_view::npos ? bytes->size() : end + 1;
  head_bytes_ += count;
  if (head_bytes_ > kMaxReplyHeadBytes) {
    Fail("a head or a chunk's line of more than " + std::to_string(kMaxReplyHeadBytes) + " bytes");
    return false;
  }
  line_.append(*bytes, 0, count);
  bytes->remove_prefix(count);
  const size_t known = std::min(line_.size(), kVersion.size());
  if (stage_ == Stage::kStatusLine && line_.compare(0, known, kVersion, 0, known) != 0) {
    Fail("not HTTP/1: " + Beginning(line_));
    return false;
  }
  if (end == std::string_view::npos) return false;
  line_.pop_back();
  if (!line_.empty() && line_.back() == '\r') line_.pop_back();
  return true;
}

void HttpReplyParser::ReadLine() {
  switch (stage_) {
    case Stage::kStatusLine:
      ReadStatusLine();
      break;
    case Stage::kHeader:
      line_.empty() ? EndHead() : ReadHeader();
      break;
    case Stage::kChunkSize:
      ReadChunkSize();
      break;
    case Stage::kChunkEnd:
      head_bytes_ = 0;
      stage_ = Stage::kChunkSize;
      if (!line_.empty()) Fail("a chunk is longer than it says");
      break;
    default:  // a trailer: nothing in it is of use
      if (line_.empty()) stage_ = Stage::kEnded;
  }
  line_.clear();
}

void HttpReplyParser::ReadStatusLine() {
  const std::string_view line = line_;  // "HTTP/1.1 200 OK"
  const std::optional<int64_t> status =
      line.size() >= 12 ? WholeNumber(line.substr(9, 3), 10) : std::optional<int64_t>();
  const bool ends = line.size() == 12 || (line.size() > 12 && line[12] == ' ');
  if (!status || *status < 100 || !ends || !IsDigit(line[7]) || line[8] != ' ') {
    return Fail("not a status line: " + Beginning(line));
  }
  status_ = static_cast<int32_t>(*status);
  head_ = ReplyHead{};
  head_.keep_alive = line[7] != '0';
  chunked_ = false;
  length_ = -1;
  stage_ = Stage::kHeader;
}

void HttpReplyParser::ReadHeader() {
  const std::string_view line = line_;
  const size_t colon = line.find(':');
  const std::string_view raw_name = line.substr(0, std::min(colon, line.size()));
  if (colon == std::string_view::npos || raw_name.empty() ||
      !std::all_of(raw_name.begin(), raw_name.end(), IsNameCharacter)) {
    return Fail("not a header: " + Beginning(line));
  }
  const std::string name = Lowered(raw_name);
  const std::string value(WithoutBlanks(line.substr(colon + 1)));
  if (name == "content-length") {
    const std::optional<int64_t> length = WholeNumber(value, 10);
    if (!length || (length_ >= 0 && length_ != *length)) {
      return Fail("content-length is " + Beginning(value));
    }
    length_ = *length;
  } else if (name == "transfer-encoding") {
    if (Lowered(value) != "chunked") return Fail("transfer-encoding is " + Beginning(value));
    chunked_ = true;
  } else if (name == "connection") {
    const std::string list = Lowered(value);
    if (Lists(list, "close")) head_.keep_alive = false;
    if (Lists(list, "keep-alive")) head_.keep_alive = true;
  } else if (name == "retry-after") {
    head_.retry_after = value;
  } else if (name == "retry-after-ms") {
    head_.retry_after_ms = value;
  } else if (name == "content-encoding") {
    head_.content_encoding = value;
  }
}

void HttpReplyParser::EndHead() {
  const bool is_interim = status_ < 200 && status_ != 101;
  if (is_interim) {
    stage_ = Stage::kStatusLine;
    return;
  }
  head_.status = status_;
  head_bytes_ = 0;
  if (status_ == 204 || status_ == 304 || (length_ == 0 && !chunked_)) {
    stage_ = Stage::kEnded;
  } else if (chunked_) {
    stage_ = Stage::kChunkSize;
  } else if (length_ > 0) {
    left_ = length_;
    stage_ = Stage::kLengthBody;
  } else {
    head_.keep_alive = false;
    stage_ = Stage::kBodyToClose;
  }
}

void HttpReplyParser::ReadChunkSize() {
  const std::string_view line = line_;
  const std::optional<int64_t> size =
      WholeNumber(WithoutBlanks(line.substr(0, std::min(line.find(';'), line.size()))), 16);
  if (!size) return Fail("not a chunk's size: " + Beginning(line));
  head_bytes_ = 0;
  left_ = *size;
  stage_ = left_ == 0 ? Stage::kTrailer : Stage::kChunk;
}

bool HttpReplyParser::Close() {
  if (stage_ == Stage::kBodyToClose) stage_ = Stage::kEnded;
  return stage_ == Stage::kEnded;
}

void HttpReplyParser::Fail(const std::string& what) {
  fault_ = what;
  stage_ = Stage::kFault;
}

}  // namespace tramontane::load
