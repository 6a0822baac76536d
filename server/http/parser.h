// HttpRequestParser: the bytes of a connection to one HTTP/1 request. Boost.Beast does the reading; this is
// all of it that the rest sees. No sockets: fuzzed as it is. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/http.h"
#include "server/http/limits.h"
#include "server/http/refusal.h"

namespace tramontane {

class HttpRequestParser {
 public:
  explicit HttpRequestParser(const HttpLimits& limits);
  ~HttpRequestParser();
  HttpRequestParser(HttpRequestParser&&) noexcept;
  HttpRequestParser& operator=(HttpRequestParser&&) noexcept;

  // Takes what it can use from the front of `bytes` and says how many those were; the rest, part of a line,
  // has to come again with more behind it. Takes nothing after done() or failed(). Always: a rest that is not
  // refused is shorter than max_header_bytes, and the header has no more than that, and max_header_fields.
  size_t Feed(std::string_view bytes);

  bool header_done() const;
  bool done() const;    // a whole request: Take() it
  bool failed() const;  // and always will: answer refusal(), close
  const HttpRefusal& refusal() const;

  // After the header.
  bool expects_continue() const;  // the client sends its body when it has seen "100 Continue"
  bool keep_alive() const;        // the connection may carry another request
  bool is_http_1_1() const;       // knows chunked bodies
  int64_t header_bytes() const;   // that the header takes, so far
  int64_t body_bytes() const;     // of the body that have come, whatever was announced

  // Method, target and headers, where the whole header has come; else empty.
  const HttpRequest& header() const;

  // REQUIRES: done(). Once.
  HttpRequest Take();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The path of a request's target, with nothing decoded: "/v1/models?a=b" and "http://host/v1/models" ->
// "/v1/models".
std::string_view PathOf(std::string_view target);

}  // namespace tramontane
