#include "server/gateway/http_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <boost/beast/http/string_body.hpp>
#include <utility>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;
using boost::beast::iequals;

ApiError Refusal(int status, std::string message) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  return error;
}

ApiError ErrorOf(const error_code& fault, const HttpLimits& limits) {
  if (fault == http::error::header_limit) {
    return Refusal(
        431, "the request's header is longer than " + std::to_string(limits.max_header_bytes) + " bytes");
  }
  if (fault == http::error::body_limit) {
    return Refusal(413,
                   "the request's body is longer than " + std::to_string(limits.max_body_bytes) + " bytes");
  }
  if (fault == http::error::bad_version) return Refusal(505, "not HTTP/1.0 or HTTP/1.1");
  return Refusal(400, "not an HTTP request: " + fault.message());
}

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// What is not "%" and two hexadecimal digits stays as it is.
std::string PercentDecoded(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      const int high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
      if (high >= 0 && low >= 0) {
        decoded.push_back(static_cast<char>(high * 16 + low));
        i += 2;
        continue;
      }
    }
    decoded.push_back(text[i]);
  }
  return decoded;
}

// "http://host:port/path" -> "/path", as requests to a proxy are written.
std::string_view WithoutAuthority(std::string_view target) {
  const size_t scheme = target.find("://");
  if (target.starts_with('/') || scheme == std::string_view::npos) return target;
  const size_t path = target.find('/', scheme + 3);
  return path == std::string_view::npos ? "/" : target.substr(path);
}

}  // namespace

struct HttpRequestParser::Impl {
  explicit Impl(const HttpLimits& limits) : limits(limits) {
    parser.header_limit(static_cast<uint32_t>(limits.max_header_bytes));
    parser.body_limit(static_cast<uint64_t>(limits.max_body_bytes));
    parser.eager(false);  // until the header is done, so that its length is known
  }

  void Fail(ApiError why) {
    failed = true;
    error = std::move(why);
  }
  void CheckHeader();

  const HttpLimits limits;
  http::request_parser<http::string_body> parser;
  int64_t header_bytes = 0;
  bool checked = false;  // CheckHeader ran
  bool failed = false;
  ApiError error;
};

HttpRequestParser::HttpRequestParser(const HttpLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
HttpRequestParser::~HttpRequestParser() = default;
HttpRequestParser::HttpRequestParser(HttpRequestParser&&) noexcept = default;
HttpRequestParser& HttpRequestParser::operator=(HttpRequestParser&&) noexcept = default;

size_t HttpRequestParser::Feed(std::string_view bytes) {
  size_t taken = 0;
  while (!failed() && !done() && taken < bytes.size()) {
    error_code fault;
    const size_t used =
        impl_->parser.put(boost::asio::const_buffer(bytes.data() + taken, bytes.size() - taken), fault);
    taken += used;
    if (!impl_->checked) impl_->header_bytes += static_cast<int64_t>(used);
    if (fault && fault != http::error::need_more) {
      impl_->Fail(ErrorOf(fault, impl_->limits));
      break;
    }
    if (header_done() && !impl_->checked) impl_->CheckHeader();
    if (used == 0) break;
  }
  return taken;
}

// What Beast leaves to the server.
void HttpRequestParser::Impl::CheckHeader() {
  checked = true;
  parser.eager(true);
  // Beast holds the request line and the fields to the limit one by one.
  if (header_bytes > limits.max_header_bytes) return Fail(ErrorOf(http::error::header_limit, limits));
  const auto& header = parser.get();
  if (header.version() >= 11 && header.count(http::field::host) == 0) {
    return Fail(Refusal(400, "an HTTP/1.1 request needs a Host"));
  }
  if (header.count(http::field::transfer_encoding) != 0 && !parser.chunked()) {
    return Fail(Refusal(501, "Transfer-Encoding: only \"chunked\" is understood"));
  }
  const auto expect = header.find(http::field::expect);
  if (expect != header.end() && !iequals(expect->value(), "100-continue")) {
    return Fail(Refusal(417, "Expect: only \"100-continue\" is understood"));
  }
}

bool HttpRequestParser::header_done() const { return impl_->parser.is_header_done(); }
bool HttpRequestParser::done() const { return !impl_->failed && impl_->parser.is_done(); }
bool HttpRequestParser::failed() const { return impl_->failed; }
const ApiError& HttpRequestParser::error() const { return impl_->error; }

bool HttpRequestParser::expects_continue() const {
  return header_done() && impl_->parser.get().count(http::field::expect) != 0 && is_http_1_1();
}
bool HttpRequestParser::keep_alive() const { return header_done() && impl_->parser.get().keep_alive(); }
bool HttpRequestParser::is_http_1_1() const { return header_done() && impl_->parser.get().version() >= 11; }

int64_t HttpRequestParser::body_bytes() const {
  if (!header_done()) return 0;
  const auto announced = impl_->parser.content_length();
  return std::max(static_cast<int64_t>(impl_->parser.get().body().size()),
                  announced ? static_cast<int64_t>(*announced) : 0);
}

HttpRequest HttpRequestParser::Take() {
  TM_CHECK(done(), "Take() of half a request");
  auto message = impl_->parser.release();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string_view target = message.target();
  request.path = NormalizedPath(target);
  const size_t query = target.find('?');
  if (query != std::string_view::npos) request.query = std::string(target.substr(query + 1));
  for (const auto& field : message) {
    request.headers.emplace_back(LowerCase(field.name_string()), std::string(field.value()));
  }
  request.body = std::move(message.body());
  return request;
}

std::string NormalizedPath(std::string_view target) {
  target = WithoutAuthority(target);
  const std::string decoded = PercentDecoded(target.substr(0, target.find_first_of("?#")));
  std::string path;
  for (char c : decoded) {
    if (c != '/' || path.empty() || path.back() != '/') path.push_back(c);
  }
  if (path.size() > 1 && path.back() == '/') path.pop_back();
  while (path.starts_with("/v1/")) path.erase(0, 3);
  return path;
}

}  // namespace tramontane
