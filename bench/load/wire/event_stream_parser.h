// Server-sent events out of the body of a reply, in pieces of any size, by the rules of the HTML standard:
// lines end with CR, LF or CRLF, a blank line completes an event, comments and unknown fields are skipped.
// One thread at a time.
//
// Stricter than the standard in one thing: there every text is an event stream, here a line that is neither
// a comment nor begins with the name of a field ("<html>", "{\"id\": 1") is a fault. Bytes that are not UTF-8
// are passed on as they are. A field `error`, which no standard has and llama.cpp wrote for years, is the
// data of an event called error.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace tramontane::load {

// Of one event, and of a line. A longer one is a fault. Thousands of streams may hold one each.
inline constexpr size_t kMaxEventBytes = 1024 * 1024;

// Valid until the parser is next called.
struct ServerSentEvent {
  std::string_view name;  // of `event:`; empty: none
  std::string_view data;  // the lines of `data:`, with LF between them
};

class EventStreamParser {
 public:
  // Takes bytes from the front of `bytes` up to the one that completes an event with data: with CRLF that is
  // the CR of its blank line. Nothing: all bytes are taken, or there is a fault.
  std::optional<ServerSentEvent> Next(std::string_view* bytes);

  // No more bytes will come. What is not completed is dropped, but it has to look like an event stream.
  void End();

  // What is not an event stream, with the beginning of what the server wrote, as it is; empty: nothing. For
  // people only through ServerText.
  const std::string& fault() const { return fault_; }

 private:
  bool TakeLine(std::string_view* bytes, std::string_view* line);
  void ReadField(std::string_view line);
  void FailAt(std::string_view line);
  void Fail(const std::string& what);

  std::string held_;  // the beginning of a line
  std::string name_;
  std::string data_;
  bool has_data_ = false;
  bool clear_ = false;     // the last event was given out
  bool at_start_ = true;   // of the stream: a byte order mark may stand here
  bool after_cr_ = false;  // an LF that comes now belongs to the line before
  std::string fault_;
};

}  // namespace tramontane::load
