#include "server/http/parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/optional.hpp>
#include <iterator>
#include <string_view>
#include <utility>

#include "kernels/core/check.h"
#include "server/base/held_bytes.h"
#include "server/base/host_port.h"
#include "server/base/text.h"

namespace tramontane {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;
using boost::beast::iequals;

constexpr int64_t kMostListBytes = 1024;
constexpr int64_t kFieldCost = 128;  // of a field besides its bytes: two strings, and what memory they lie in

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

HttpRefusal TooManyFields(const HttpLimits& limits) {
  return Refusal(431, "the request has more than " + std::to_string(limits.max_header_fields) +
                          " header fields, with those behind a chunked body");
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

// What is left of a chunked body has so many bytes at least, "0\r\n\r\n", and Beast, once it has seen the
// "0", takes for granted that they are there.
constexpr size_t kLeastLastChunk = 5;

// Fields that Beast takes apart value by value, which costs it thirty times what other bytes do.
bool IsList(std::string_view name) {
  constexpr std::string_view kLists[] = {"connection", "proxy-connection", "content-length",
                                         "transfer-encoding"};
  return std::any_of(std::begin(kLists), std::end(kLists),
                     [name](std::string_view list) { return EqualsIgnoringCase(name, list); });
}

// Of such fields, in the part of a header that is here, which begins with a line. Lines beyond `max_lines`
// are not looked at.
int64_t ListBytesIn(std::string_view header, int64_t max_lines) {
  int64_t bytes = 0;
  for (int64_t lines = 0; lines < max_lines && !header.empty() && header[0] != '\r'; ++lines) {
    const std::string_view line = header.substr(0, header.find('\n'));
    if (IsList(line.substr(0, line.find(':')))) bytes += static_cast<int64_t>(line.size());
    header.remove_prefix(std::min(header.size(), line.size() + 1));
  }
  return bytes;
}

HttpRefusal TooLongLists() {
  return Refusal(431, "the fields Connection, Content-Length and Transfer-Encoding are longer than " +
                          std::to_string(kMostListBytes) + " bytes together");
}

std::string Copy(boost::beast::string_view text) { return {text.data(), text.size()}; }

// What Beast reads, where it is needed: Beast's own container would have each field once more, and takes
// memory for a body when it is announced.
class RequestReader final : public http::basic_parser<true> {
 public:
  explicit RequestReader(const HttpLimits& limits) : limits_(limits) {
    header_limit(static_cast<uint32_t>(limits.max_header_bytes));
    body_limit(static_cast<uint64_t>(limits.max_body_bytes));
    eager(false);  // until the header is done, so that its length is known
  }

  HttpRequest request;
  bool is_http_1_1 = false;
  bool has_too_many_fields = false;
  int64_t header_cost = 0;  // what `request` takes without its body
  int64_t list_bytes = 0;   // of fields that are lists

 private:
  void on_request_impl(http::verb, boost::beast::string_view method, boost::beast::string_view target,
                       int version, error_code&) override {
    request.method = Copy(method);
    request.target = Copy(target);
    request.path = std::string(PathOf(request.target));
    is_http_1_1 = version >= 11;
    header_cost += static_cast<int64_t>(method.size() + 2 * target.size());
  }

  void on_field_impl(http::field, boost::beast::string_view name, boost::beast::string_view value,
                     error_code& fault) override {
    const std::string_view name_text(name.data(), name.size());
    if (IsList(name_text)) list_bytes += static_cast<int64_t>(name.size() + value.size());
    has_too_many_fields = ++fields_ > limits_.max_header_fields;
    if (has_too_many_fields) fault = http::error::header_limit;
    if (has_too_many_fields || is_header_done()) return;  // fields behind a body say nothing to anybody
    request.headers.emplace_back(LowerCase(name_text), Copy(value));
    header_cost += kFieldCost + static_cast<int64_t>(name.size() + value.size());
  }

  size_t on_body_impl(boost::beast::string_view bytes, error_code&) override {
    AppendArrived({bytes.data(), bytes.size()}, limits_.max_body_bytes, &request.body);
    return bytes.size();
  }
  size_t on_chunk_body_impl(uint64_t, boost::beast::string_view bytes, error_code& fault) override {
    return on_body_impl(bytes, fault);
  }

  void on_response_impl(int, boost::beast::string_view, int, error_code&) override {}
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  void on_chunk_header_impl(uint64_t, boost::beast::string_view, error_code&) override {}
  void on_finish_impl(error_code&) override {}

  const HttpLimits& limits_;
  int64_t fields_ = 0;
};

}  // namespace

struct HttpRequestParser::Impl {
  explicit Impl(const HttpLimits& given) : limits(given), reader(limits) {}

  void Fail(HttpRefusal why) {
    failed = true;
    refusal = std::move(why);
  }
  void CheckHeader();

  const HttpLimits limits;
  RequestReader reader;
  int64_t header_bytes = 0;
  bool has_header = false;  // whole
  bool keep_alive = false;  // as the header has it: Beast reads on behind a chunked body
  bool failed = false;
  bool waits = false;  // for more than what came last
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
  RequestReader& reader = impl_->reader;
  size_t taken = 0;
  while (!failed() && !done() && taken < bytes.size()) {
    const std::string_view next = bytes.substr(taken, most);
    const auto list_bytes = [&] {
      return reader.list_bytes + ListBytesIn(next, impl_->limits.max_header_fields + 2);
    };
    if (!impl_->has_header && list_bytes() > kMostListBytes) {
      impl_->Fail(TooLongLists());
      break;
    }
    if (impl_->waits && impl_->has_header && next.size() < kLeastLastChunk) break;
    error_code fault;
    const size_t used = reader.put(boost::asio::const_buffer(next.data(), next.size()), fault);
    taken += used;
    impl_->waits = used == 0;
    if (!impl_->has_header) impl_->header_bytes += static_cast<int64_t>(used);
    if (reader.has_too_many_fields) {
      impl_->Fail(TooManyFields(impl_->limits));
    } else if (!impl_->has_header && impl_->header_bytes > impl_->limits.max_header_bytes) {
      // Beast holds each of its lines to the limit.
      impl_->Fail(RefusalOf(http::error::header_limit, impl_->limits));
    } else if (fault && fault != http::error::need_more) {
      // A body that is announced too long ends the header, which Beast does not call done then.
      if (fault == http::error::body_limit) impl_->has_header = true;
      impl_->Fail(RefusalOf(fault, impl_->limits));
    } else if (header_done() && !impl_->has_header) {
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
  has_header = true;
  reader.eager(true);
  keep_alive = reader.keep_alive();
  if (reader.is_http_1_1 && reader.request.Header("host") == nullptr) {
    return Fail(Refusal(400, "an HTTP/1.1 request needs a Host"));
  }
  for (const auto& [name, value] : reader.request.headers) {
    if (name != "transfer-encoding" || iequals(value, "chunked")) continue;
    return Fail(Refusal(501, "Transfer-Encoding: only \"chunked\" is understood"));
  }
  const std::string* expect = reader.request.Header("expect");
  if (expect != nullptr && !iequals(*expect, "100-continue")) {
    return Fail(Refusal(417, "Expect: only \"100-continue\" is understood"));
  }
}

bool HttpRequestParser::header_done() const { return impl_->reader.is_header_done(); }
bool HttpRequestParser::done() const { return !impl_->failed && impl_->reader.is_done(); }
bool HttpRequestParser::failed() const { return impl_->failed; }
const HttpRefusal& HttpRequestParser::refusal() const { return impl_->refusal; }
const HttpRequest& HttpRequestParser::header() const {
  static const HttpRequest none;
  return impl_->has_header ? impl_->reader.request : none;
}

bool HttpRequestParser::expects_continue() const {
  return is_http_1_1() && impl_->has_header && impl_->reader.request.Header("expect") != nullptr;
}
bool HttpRequestParser::keep_alive() const { return impl_->keep_alive; }
bool HttpRequestParser::is_http_1_1() const { return impl_->reader.is_http_1_1; }

int64_t HttpRequestParser::header_bytes() const { return impl_->reader.header_cost; }
int64_t HttpRequestParser::body_bytes() const {
  return static_cast<int64_t>(impl_->reader.request.body.size());
}

HttpRequest HttpRequestParser::Take() {
  TM_CHECK(done(), "Take() of half a request");
  return std::move(impl_->reader.request);
}

std::string_view PathOf(std::string_view target) {
  target = WithoutAuthority(target);
  return target.substr(0, target.find_first_of("?#"));
}

}  // namespace tramontane
