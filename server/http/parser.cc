#include "server/http/parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <boost/optional.hpp>
#include <string_view>
#include <utility>

#include "kernels/core/check.h"
#include "server/base/held_bytes.h"
#include "server/base/text.h"

namespace tramontane {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;
using boost::beast::iequals;

// A body that grows as it comes. Beast's own takes memory for what a client announces.
struct ArrivingBody {
  struct value_type {
    int64_t max_bytes = 0;
    std::string bytes;
  };

  class reader {
   public:
    template <bool kIsRequest, typename Fields>
    reader(http::header<kIsRequest, Fields>&, value_type& body) : body_(body) {}

    void init(const boost::optional<uint64_t>&, error_code& fault) { fault = {}; }
    template <typename Buffers>
    size_t put(const Buffers& buffers, error_code& fault) {
      fault = {};
      size_t taken = 0;
      for (auto at = boost::asio::buffer_sequence_begin(buffers);
           at != boost::asio::buffer_sequence_end(buffers); ++at) {
        const boost::asio::const_buffer buffer = *at;
        AppendArrived({static_cast<const char*>(buffer.data()), buffer.size()}, body_.max_bytes,
                      &body_.bytes);
        taken += buffer.size();
      }
      return taken;
    }
    void finish(error_code& fault) { fault = {}; }

   private:
    value_type& body_;
  };
};

HttpRefusal Refusal(int status, std::string message) {
  return {.status = status, .message = std::move(message)};
}

HttpRefusal RefusalOf(const error_code& fault, const HttpLimits& limits) {
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

HttpRefusal EndlessLine(const HttpLimits& limits) {
  return Refusal(431, "the line of a chunk, or the fields behind the last one, are longer than " +
                          std::to_string(limits.max_header_bytes) + " bytes");
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
    parser.get().body().max_bytes = limits.max_body_bytes;
    parser.eager(false);  // until the header is done, so that its length is known
  }

  void Fail(HttpRefusal why) {
    failed = true;
    refusal = std::move(why);
  }
  void CheckHeader();
  void KeepHeader();

  const HttpLimits limits;
  http::request_parser<ArrivingBody> parser;
  // What the header said. Beast adds the fields behind a chunked body to those before it: nobody asks it
  // later.
  HttpRequest request;
  bool is_http_1_1 = false;
  bool keep_alive = false;
  bool expects_continue = false;
  int64_t header_bytes = 0;
  bool checked = false;  // CheckHeader ran
  bool failed = false;
  HttpRefusal refusal;
};

HttpRequestParser::HttpRequestParser(const HttpLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
HttpRequestParser::~HttpRequestParser() = default;
HttpRequestParser::HttpRequestParser(HttpRequestParser&&) noexcept = default;
HttpRequestParser& HttpRequestParser::operator=(HttpRequestParser&&) noexcept = default;

size_t HttpRequestParser::Feed(std::string_view bytes) {
  // Beast waits for the end of a chunk's line, and of the fields behind the last one, for as long as they
  // are; so it never sees more than such a line may have.
  const auto most = static_cast<size_t>(impl_->limits.max_header_bytes);
  size_t taken = 0;
  while (!failed() && !done() && taken < bytes.size()) {
    const std::string_view next = bytes.substr(taken, most);
    error_code fault;
    const size_t used = impl_->parser.put(boost::asio::const_buffer(next.data(), next.size()), fault);
    taken += used;
    if (!impl_->checked) impl_->header_bytes += static_cast<int64_t>(used);
    if (fault && fault != http::error::need_more) {
      // A body that is announced too long ends the header, which Beast does not call done then.
      if (fault == http::error::body_limit && !impl_->checked) impl_->KeepHeader();
      impl_->Fail(RefusalOf(fault, impl_->limits));
    } else if (header_done() && !impl_->checked) {
      impl_->CheckHeader();
    } else if (used == 0 && next.size() == most) {
      impl_->Fail(EndlessLine(impl_->limits));
    } else if (used == 0) {
      break;
    }
  }
  return taken;
}

// What Beast leaves to the server.
void HttpRequestParser::Impl::CheckHeader() {
  checked = true;
  parser.eager(true);
  KeepHeader();
  const auto& header = parser.get();
  is_http_1_1 = header.version() >= 11;
  keep_alive = parser.keep_alive();
  expects_continue = is_http_1_1 && header.count(http::field::expect) != 0;
  // Beast holds the request line and the fields to the limit one by one.
  if (header_bytes > limits.max_header_bytes) return Fail(RefusalOf(http::error::header_limit, limits));
  if (is_http_1_1 && header.count(http::field::host) == 0) {
    return Fail(Refusal(400, "an HTTP/1.1 request needs a Host"));
  }
  const auto encodings = header.equal_range(http::field::transfer_encoding);
  for (auto at = encodings.first; at != encodings.second; ++at) {
    if (iequals(at->value(), "chunked")) continue;
    return Fail(Refusal(501, "Transfer-Encoding: only \"chunked\" is understood"));
  }
  const auto expect = header.find(http::field::expect);
  if (expect != header.end() && !iequals(expect->value(), "100-continue")) {
    return Fail(Refusal(417, "Expect: only \"100-continue\" is understood"));
  }
}

void HttpRequestParser::Impl::KeepHeader() {
  const auto& header = parser.get();
  request.method = std::string(header.method_string());
  request.target = std::string(header.target());
  request.path = std::string(PathOf(request.target));
  for (const auto& field : header) {
    request.headers.emplace_back(LowerCase(field.name_string()), std::string(field.value()));
  }
}

bool HttpRequestParser::header_done() const { return impl_->parser.is_header_done(); }
bool HttpRequestParser::done() const { return !impl_->failed && impl_->parser.is_done(); }
bool HttpRequestParser::failed() const { return impl_->failed; }
const HttpRefusal& HttpRequestParser::refusal() const { return impl_->refusal; }
const HttpRequest& HttpRequestParser::header() const { return impl_->request; }

bool HttpRequestParser::expects_continue() const { return impl_->expects_continue; }
bool HttpRequestParser::keep_alive() const { return impl_->keep_alive; }
bool HttpRequestParser::is_http_1_1() const { return impl_->is_http_1_1; }

int64_t HttpRequestParser::body_bytes() const {
  return static_cast<int64_t>(impl_->parser.get().body().bytes.size());
}
int64_t HttpRequestParser::held_bytes() const { return impl_->header_bytes + body_bytes(); }

HttpRequest HttpRequestParser::Take() {
  TM_CHECK(done(), "Take() of half a request");
  HttpRequest request = std::move(impl_->request);
  request.body = std::move(impl_->parser.get().body().bytes);
  return request;
}

std::string_view PathOf(std::string_view target) {
  target = WithoutAuthority(target);
  return target.substr(0, target.find_first_of("?#"));
}

}  // namespace tramontane
