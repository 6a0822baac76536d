#include "server/http/request_input.h"

#include <algorithm>
#include <utility>

namespace tramontane {
RequestInput::State RequestInput::Parse(std::string_view bytes) {
  const bool had_some = !unparsed_.empty();
  if (had_some) unparsed_.append(bytes);
  const size_t taken = parser_.Feed(had_some ? std::string_view(unparsed_) : bytes);
  if (had_some) {
    unparsed_.erase(0, taken);
  } else {
    unparsed_.assign(bytes.substr(taken));
  }
  if (unparsed_.empty()) std::string().swap(unparsed_);  // a connection that waits keeps no buffer
  if (parser_.failed()) {
    refusal_ = parser_.refusal();
    return State::kRefused;
  }
  if (!Hold()) {
    refusal_ = TooManyBodyBytes(held_.budget().max_bytes());
    return State::kRefused;
  }
  return parser_.done() ? State::kWhole : State::kIncomplete;
}

// False: there is no room for it. A short header needs none: it may be the question how the server is, and
// connections have a bound of their own.
bool RequestInput::Hold() {
  const int64_t bytes =
      static_cast<int64_t>(unparsed_.size()) + parser_.header_bytes() + parser_.body_bytes();
  if (parser_.body_bytes() > 0 || bytes > kShortHeaderBytes) return held_.TrySet(bytes);
  held_.Set(bytes);
  return true;
}

bool RequestInput::TakeHeader() { return parser_.header_done() && !std::exchange(header_taken_, true); }

bool RequestInput::TakeContinue() {
  return parser_.expects_continue() && !std::exchange(continue_taken_, true);
}

ArrivedRequest RequestInput::Take() {
  const bool is_http_1_1 = parser_.is_http_1_1(), keep_alive = parser_.keep_alive();
  HeldBytes held_header = held_.Split(parser_.header_bytes());
  HeldBytes held_body = held_.Split(parser_.body_bytes());
  HttpRequest request = parser_.Take();
  request.first_byte_ns = first_byte_ns_;
  parser_ = HttpRequestParser(limits_);
  header_taken_ = continue_taken_ = false;
  held_.Set(static_cast<int64_t>(unparsed_.size()));
  return {.request = std::move(request),
          .held_header = std::move(held_header),
          .held_body = std::move(held_body),
          .is_http_1_1 = is_http_1_1,
          .keep_alive = keep_alive};
}

size_t RequestInput::HoldRoomToReadAhead() {
  const size_t room = kReadAheadBytes - std::min(kReadAheadBytes, unparsed_.size());
  return held_.TrySet(static_cast<int64_t>(unparsed_.size() + room)) ? room : 0;
}

void RequestInput::ReadAhead(std::string_view bytes) {
  unparsed_.append(bytes);
  held_.Set(static_cast<int64_t>(unparsed_.size()));
}

std::string RequestInput::TakeReadAhead() { return std::exchange(unparsed_, {}); }

void RequestInput::Drop() {
  std::string().swap(unparsed_);
  parser_ = HttpRequestParser(limits_);
  held_.Set(0);
}

}  // namespace tramontane
