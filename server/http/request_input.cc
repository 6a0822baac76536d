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

// False: there is no room for it. Only a body has to find room; what comes before it has a bound of its own,
// and a request without a body may be the question how the server is.
bool RequestInput::Hold() {
  const int64_t bytes = static_cast<int64_t>(unparsed_.size()) + parser_.held_bytes();
  if (parser_.body_bytes() > 0) return held_.TrySet(bytes);
  held_.Set(bytes);
  return true;
}

bool RequestInput::TakeHeader() { return parser_.header_done() && !std::exchange(header_taken_, true); }

bool RequestInput::TakeContinue() {
  return parser_.expects_continue() && !std::exchange(continue_taken_, true);
}

ArrivedRequest RequestInput::Take() {
  const bool is_http_1_1 = parser_.is_http_1_1(), keep_alive = parser_.keep_alive();
  HttpRequest request = parser_.Take();
  request.first_byte_ns = first_byte_ns_;
  HeldBytes held = held_.Split(static_cast<int64_t>(request.body.size()));
  parser_ = HttpRequestParser(limits_);
  header_taken_ = continue_taken_ = false;
  held_.Set(static_cast<int64_t>(unparsed_.size()));
  return {.request = std::move(request),
          .held = std::move(held),
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
