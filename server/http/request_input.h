// RequestInput: what a connection has read and not handed on yet: the request that comes, and what was read
// ahead of it. On the connection's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/base/held_bytes.h"
#include "server/http/http.h"
#include "server/http/limits.h"
#include "server/http/parser.h"
#include "server/http/refusal.h"

namespace tramontane {

inline constexpr size_t kReadAheadBytes = 64 << 10;  // kept of what follows a request that is being answered

// A request, and how it wants to be answered.
struct ArrivedRequest {
  HttpRequest request;
  HeldBytes held_header;
  HeldBytes held_body;
  bool is_http_1_1 = false;
  bool keep_alive = false;
};

class RequestInput {
 public:
  enum class State { kIncomplete, kWhole, kRefused };

  // `client`: whose share of the budget it takes.
  RequestInput(const HttpLimits& limits, ByteBudget& budget, const std::string& client)
      : limits_(limits), parser_(limits), held_(budget, client) {}

  // ---- the request that comes ----
  void Begin(int64_t now_ns) { first_byte_ns_ = now_ns; }  // its first byte is here
  State Parse(std::string_view bytes);
  const HttpRefusal& refusal() const { return refusal_; }         // REQUIRES: kRefused
  const HttpRequest& header() const { return parser_.header(); }  // as the parser's
  // The whole header is here; true once.
  bool TakeHeader();
  // The client waits to be told that it may go on; true once.
  bool TakeContinue();
  // REQUIRES: kWhole. What came behind it is read ahead.
  ArrivedRequest Take();

  // ---- while one is answered ----
  // How much may be read now. It finds its room before it comes: it can wait where it is.
  size_t HoldRoomToReadAhead();
  void ReadAhead(std::string_view bytes);
  bool has_read_ahead() const { return !unparsed_.empty(); }
  bool has_room_to_read_ahead() const { return unparsed_.size() < kReadAheadBytes; }
  std::string TakeReadAhead();

  void Drop();
  int64_t held_bytes() const { return held_.bytes(); }

 private:
  bool Hold();

  const HttpLimits& limits_;
  HttpRequestParser parser_;
  std::string unparsed_;  // read, and not yet taken by the parser
  HeldBytes held_;        // for both
  HttpRefusal refusal_;
  int64_t first_byte_ns_ = 0;  // of the request that comes
  bool header_taken_ = false;
  bool continue_taken_ = false;
};

}  // namespace tramontane
