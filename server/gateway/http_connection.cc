#include "server/gateway/http_connection.h"

#include <poll.h>
#include <strings.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <charconv>
#include <chrono>
#include <ctime>
#include <latch>
#include <optional>

#include "server/gateway/api_error.h"
#include "server/gateway/gzip.h"
#include "server/request_id.h"

namespace tramontane {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kReadAheadBytes = 64 << 10;   // kept of what follows a request that is being answered
constexpr size_t kKeptBufferBytes = 64 << 10;  // a larger buffer is given back once it is written

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";  // clients read the number
  }
}

// "Sun, 06 Nov 1994 08:49:37 GMT"
std::string HttpDate() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[40];
  return std::string(text, std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &utc));
}

ApiError Refusal(int status, std::string type, std::string message) {
  ApiError error;
  error.status = status;
  error.type = std::move(type);
  error.message = std::move(message);
  return error;
}

// With input left unread, the system alone knows whether the client is still there.
bool HasHungUp(tcp::socket& socket) {
  pollfd state{};
  state.fd = socket.native_handle();
  state.events = POLLRDHUP;
  return poll(&state, 1, 0) > 0;
}

// The face of a connection towards endpoints.
class Exchange : public HttpExchange {
 public:
  Exchange(std::shared_ptr<Connection> connection, int64_t number, HttpRequest request)
      : connection_(std::move(connection)), number_(number), request_(std::move(request)) {}
  ~Exchange() override {
    if (state_ == State::kOpen) {
      Respond(ErrorResponse(Refusal(500, "server_error", "this request was given up")));
    } else if (state_ == State::kStreaming) {
      Do([connection = connection_, number = number_] { connection->Abandon(number); });
    }
  }

  const HttpRequest& request() const override { return request_; }

  // On a handler thread, before anybody else sees the exchange. False: refused.
  bool DecodeBody(int64_t max_bytes);

  void Respond(HttpResponse response) override {
    state_ = State::kAnswered;
    Do([connection = connection_, number = number_, response = std::move(response)]() mutable {
      connection->Respond(number, std::move(response));
    });
  }
  void StartStream(HttpResponse head) override {
    state_ = State::kStreaming;
    Do([connection = connection_, number = number_, head = std::move(head)]() mutable {
      connection->StartStream(number, std::move(head));
    });
  }
  void Write(std::string bytes) override {
    Do([connection = connection_, number = number_, bytes = std::move(bytes)] {
      connection->Write(number, bytes);
    });
  }
  void End(std::string last_bytes) override {
    state_ = State::kAnswered;
    Do([connection = connection_, number = number_, bytes = std::move(last_bytes)] {
      connection->End(number, bytes);
    });
  }
  void Listen(std::shared_ptr<HttpListener> listener) override {
    const bool there = Do([connection = connection_, number = number_, listener]() mutable {
      connection->Listen(number, std::move(listener));
    });
    if (!there) listener->OnHangUp();  // the server has stopped, and its threads with it
  }
  void Post(std::function<void()> work) override { connection_->thread().Post(std::move(work)); }

 private:
  enum class State { kOpen, kStreaming, kAnswered };

  // At once where this is the connection's thread.
  template <typename Work>
  bool Do(Work work) {
    if (connection_->thread().is_current()) {
      work();
      return true;
    }
    return connection_->thread().Post(std::move(work));
  }

  const std::shared_ptr<Connection> connection_;
  const int64_t number_;
  HttpRequest request_;  // constant, once it is decoded
  std::atomic<State> state_{State::kOpen};
};

bool Exchange::DecodeBody(int64_t max_bytes) {
  const std::string* encoding = request_.Header("content-encoding");
  if (encoding == nullptr || request_.body.empty() || strcasecmp(encoding->c_str(), "identity") == 0)
    return true;
  std::string decoded;
  std::optional<ApiError> fault;
  if (strcasecmp(encoding->c_str(), "gzip") == 0) {
    fault = Gunzip(request_.body, max_bytes, &decoded);
  } else {
    fault = Refusal(415, "invalid_request_error",
                    "Content-Encoding: \"" + *encoding + "\" is not understood, only gzip and identity");
  }
  if (fault) {
    Respond(ErrorResponse(*fault));
    return false;
  }
  const auto more = static_cast<int64_t>(decoded.size()) - static_cast<int64_t>(request_.body.size());
  request_.body = std::move(decoded);
  Do([connection = connection_, number = number_, more] { connection->HoldMore(number, more); });
  return true;
}

}  // namespace

// ---- IoThread --------------------------------------------------------------------------------------

void IoThread::Start(int64_t sweep_ms) {
  sweep_ms_ = sweep_ms;
  thread_ = std::thread([this] {
    thread_id_ = std::this_thread::get_id();
    ScheduleSweep();
    context_.run();
  });
}

bool IoThread::Post(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  mailbox_.push_back(std::move(work));
  if (mailbox_.size() == 1) asio::post(context_, [this] { RunMailbox(); });
  return true;
}

void IoThread::RunMailbox() {
  {
    std::lock_guard lock(mutex_);
    running_.swap(mailbox_);
  }
  for (auto& work : running_) work();
  running_.clear();
}

void IoThread::ScheduleSweep() {
  timer_.expires_after(std::chrono::milliseconds(sweep_ms_));
  timer_.async_wait([this](error_code) {
    if (stopping_) return;
    Sweep();
    ScheduleSweep();
  });
}

void IoThread::Sweep() {
  const int64_t now = NowMs();
  // Sweeping may close connections, which removes them.
  const std::vector<std::shared_ptr<Connection>> connections(connections_.begin(), connections_.end());
  for (const auto& connection : connections) connection->Sweep(now);
}

void IoThread::CloseConnections() {
  std::latch closed(1);
  const bool runs = Post([this, &closed] {
    const std::vector<std::shared_ptr<Connection>> connections(connections_.begin(), connections_.end());
    for (const auto& connection : connections) connection->Close();
    closed.count_down();
  });
  if (runs) closed.wait();
}

void IoThread::Join() {
  if (!thread_.joinable()) return;
  asio::post(context_, [this] {
    stopping_ = true;
    timer_.cancel();
  });
  work_.reset();
  thread_.join();
  thread_id_ = std::thread::id();
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  RunMailbox();
}

// ---- Connection: reading -----------------------------------------------------------------------------

void Connection::Begin() {
  since_ms_ = NowMs();
  thread_->Add(shared_from_this());
  if (shared_->stopping) return Close();
  WaitForInput();
}

void Connection::BeginRefused() {
  Begin();
  if (phase_ == Phase::kClosed) return;
  ApiError error =
      Refusal(503, "service_unavailable",
              "the most connections, " + std::to_string(limits().max_connections) + ", are open");
  error.code = "too_many_connections";
  error.retry_after_ms = 1000;
  Refuse(error);
}

void Connection::WaitForInput() {
  const bool has_room = phase_ != Phase::kAnswering || input_.size() < kReadAheadBytes;
  if (waiting_for_input_ || phase_ == Phase::kClosed || input_ended_ || !has_room) return;
  waiting_for_input_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code fault) {
    self->waiting_for_input_ = false;
    if (!fault && self->phase_ != Phase::kClosed) self->OnReadable();
  });
}

void Connection::OnReadable() {
  error_code fault;
  auto& buffer = thread_->read_buffer();
  const size_t bytes = socket_.read_some(asio::buffer(buffer), fault);
  if (fault == asio::error::would_block) return WaitForInput();
  if (fault == asio::error::eof) return OnInputEnd();
  if (fault) return Close();
  OnInput(std::string_view(buffer.data(), bytes));
  WaitForInput();
}

void Connection::OnInput(std::string_view bytes) {
  switch (phase_) {
    case Phase::kIdle:
      phase_ = Phase::kReading;
      since_ms_ = NowMs();
      ParseInput(bytes);
      break;
    case Phase::kReading:
      ParseInput(bytes);
      break;
    case Phase::kAnswering:
      input_.append(bytes);
      break;
    case Phase::kLingering:
    case Phase::kClosed:
      break;
  }
}

// The client has closed its socket, or only its sending side: nobody can tell which. A generation is not
// worth computing for somebody who is probably gone; anything else is answered.
void Connection::OnInputEnd() {
  input_ended_ = true;
  const bool has_read_ahead = phase_ == Phase::kIdle && !input_.empty();
  if (has_read_ahead || (phase_ == Phase::kAnswering && listener_ == nullptr)) return;
  Close();
}

void Connection::ParseInput(std::string_view bytes) {
  const bool had_input = !input_.empty();
  if (had_input) input_.append(bytes);
  const std::string_view available = had_input ? std::string_view(input_) : bytes;
  const size_t taken = parser_.Feed(available);
  if (had_input) {
    input_.erase(0, taken);
  } else {
    input_.assign(bytes.substr(taken));
  }
  if (parser_.failed()) return Refuse(parser_.error());
  if (parser_.header_done() && !HoldBody()) return;
  if (parser_.done()) return Dispatch();
  if (parser_.expects_continue() && !continue_sent_) {
    continue_sent_ = true;
    output_.append("HTTP/1.1 100 Continue\r\n\r\n");
    Flush();
  }
}

// Counts the body against what all of them may hold. False: refused.
bool Connection::HoldBody() {
  const int64_t more = parser_.body_bytes() - held_body_bytes_;
  held_body_bytes_ += more;
  if (more == 0 || shared_->held_body_bytes.fetch_add(more) + more <= limits().max_held_body_bytes)
    return true;
  ApiError error = Refusal(503, "service_unavailable",
                           "the requests being read hold more than " +
                               std::to_string(limits().max_held_body_bytes) + " bytes together");
  error.code = "too_many_body_bytes";
  error.retry_after_ms = 1000;
  Refuse(error);
  return false;
}

void Connection::Dispatch() {
  const bool is_http_1_1 = parser_.is_http_1_1();
  keep_alive_ = parser_.keep_alive();
  HttpRequest request = parser_.Take();
  const std::string* given = request.Header("x-request-id");
  request.id = DrawRequestId();
  request.request_id = given != nullptr && RequestIdFault(*given).empty() ? *given : request.id;
  request_id_ = request.request_id;
  is_head_ = request.method == "HEAD";
  is_chunked_ = is_http_1_1;
  streaming_ = answered_ = continue_sent_ = false;
  BeginAnswer();
  parser_ = HttpRequestParser(limits());
  auto exchange = std::make_shared<Exchange>(shared_from_this(), ++exchange_, std::move(request));
  asio::post(shared_->handlers, [shared = shared_, exchange = std::move(exchange)]() mutable {
    if (!exchange->DecodeBody(shared->options.limits.max_body_bytes)) return;
    shared->handler(std::move(exchange));
  });
}

// Answers what is no request, and closes.
void Connection::Refuse(const ApiError& error) {
  ++exchange_;
  BeginAnswer();
  request_id_ = DrawRequestId();
  keep_alive_ = is_head_ = streaming_ = answered_ = false;
  Respond(exchange_, ErrorResponse(error));
}

void Connection::BeginAnswer() {
  phase_ = Phase::kAnswering;
  since_ms_ = NowMs();
  ++shared_->open_exchanges;
}

// ---- Connection: answering ---------------------------------------------------------------------------

std::string Connection::Head(const HttpResponse& response, const std::string& length_field) const {
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + " " + ReasonPhrase(response.status) +
                     "\r\ndate: " + HttpDate() + "\r\nx-request-id: " + request_id_ + "\r\n";
  if (!response.content_type.empty()) head += "content-type: " + response.content_type + "\r\n";
  for (const auto* headers : {&shared_->options.headers, &response.headers}) {
    for (const auto& [name, value] : *headers) head.append(name).append(": ").append(value).append("\r\n");
  }
  return head + length_field + (keep_alive_ ? "connection: keep-alive\r\n\r\n" : "connection: close\r\n\r\n");
}

void Connection::Respond(int64_t exchange, HttpResponse response) {
  if (exchange != exchange_ || phase_ != Phase::kAnswering || answered_ || streaming_) return;
  if (shared_->closing) keep_alive_ = false;
  const bool has_length = response.status != 204;
  output_ +=
      Head(response, has_length ? "content-length: " + std::to_string(response.body.size()) + "\r\n" : "");
  if (!is_head_) output_ += response.body;
  answered_ = true;
  Flush();
}

void Connection::StartStream(int64_t exchange, HttpResponse head) {
  if (exchange != exchange_ || phase_ != Phase::kAnswering || answered_ || streaming_) return;
  if (shared_->closing || !is_chunked_)
    keep_alive_ = false;  // without chunks only the end of the connection ends it
  streaming_ = true;
  output_ += Head(head, is_chunked_ ? "transfer-encoding: chunked\r\n" : "");
  Append(head.body);
  Flush();
}

void Connection::Write(int64_t exchange, std::string_view bytes) {
  if (exchange != exchange_ || phase_ != Phase::kAnswering || answered_ || !streaming_) return;
  Append(bytes);
  Flush();
}

void Connection::End(int64_t exchange, std::string_view last_bytes) {
  if (exchange != exchange_ || phase_ != Phase::kAnswering || answered_ || !streaming_) return;
  Append(last_bytes);
  if (is_chunked_ && !is_head_) output_ += "0\r\n\r\n";
  answered_ = true;
  Flush();
}

void Connection::Listen(int64_t exchange, std::shared_ptr<HttpListener> listener) {
  if (exchange != exchange_ || phase_ != Phase::kAnswering || input_ended_) {
    if (phase_ == Phase::kAnswering) Close();
    return listener->OnHangUp();
  }
  listener_ = std::move(listener);
}

void Connection::Abandon(int64_t exchange) {
  if (exchange == exchange_ && phase_ == Phase::kAnswering && !answered_) Close();
}

void Connection::HoldMore(int64_t exchange, int64_t bytes) {
  if (exchange != exchange_ || phase_ != Phase::kAnswering) return;
  held_body_bytes_ += bytes;
  shared_->held_body_bytes += bytes;
}

void Connection::Append(std::string_view chunk) {
  if (chunk.empty() || is_head_) return;  // an empty chunk would end the body
  if (!is_chunked_) {
    output_.append(chunk);
    return;
  }
  char size[20];
  const auto end = std::to_chars(size, size + sizeof(size), chunk.size(), 16).ptr;
  output_.append(size, end).append("\r\n").append(chunk).append("\r\n");
}

// Writes what it can without waiting, and the rest as the client takes it.
void Connection::Flush() {
  if (blocked_ || phase_ == Phase::kClosed) return;
  while (written_ < output_.size()) {
    error_code fault;
    const size_t bytes =
        socket_.write_some(asio::buffer(output_.data() + written_, output_.size() - written_), fault);
    written_ += bytes;
    if (fault == asio::error::would_block) {
      blocked_ = true;
      since_ms_ = NowMs();
      socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](error_code wait_fault) {
        self->blocked_ = false;
        self->since_ms_ = NowMs();
        if (!wait_fault) self->Flush();
      });
      return;
    }
    if (fault) return Close();
  }
  output_.clear();
  written_ = 0;
  if (output_.capacity() > kKeptBufferBytes) std::string().swap(output_);
  OnFlushed();
}

void Connection::OnFlushed() {
  if (phase_ != Phase::kAnswering) return;
  since_ms_ = NowMs();
  if (answered_) return EndAnswer();
  if (const auto listener = listener_) listener->OnWritten();
}

void Connection::EndAnswer() {
  listener_ = nullptr;
  shared_->held_body_bytes -= std::exchange(held_body_bytes_, 0);
  --shared_->open_exchanges;
  phase_ = Phase::kIdle;
  if (!keep_alive_) return Linger();
  // What came meanwhile, after this answer's callers have returned.
  if (!input_.empty()) {
    thread_->Post([self = shared_from_this()] { self->OnReadAhead(); });
  } else if (input_ended_) {
    Close();
  }
}

void Connection::OnReadAhead() {
  if (phase_ != Phase::kIdle) return;
  const std::string input = std::exchange(input_, {});
  OnInput(input);
  if (input_ended_ && phase_ != Phase::kAnswering) return Close();
  WaitForInput();
}

// Closing a socket with unread bytes would take the last words back from the client.
void Connection::Linger() {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  if (input_ended_) return Close();
  phase_ = Phase::kLingering;
  input_.clear();
  WaitForInput();
}

void Connection::Close() {
  if (phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kAnswering) --shared_->open_exchanges;
  phase_ = Phase::kClosed;
  shared_->held_body_bytes -= std::exchange(held_body_bytes_, 0);
  error_code ignored;
  socket_.close(ignored);
  thread_->Remove(shared_from_this());
  if (const auto listener = std::exchange(listener_, nullptr)) listener->OnHangUp();
}

// ---- Connection: clocks ------------------------------------------------------------------------------

void Connection::Sweep(int64_t now) {
  const int64_t waited_ms = now - since_ms_;
  switch (phase_) {
    case Phase::kIdle: {
      const bool is_new = exchange_ == 0;
      if (shared_->closing || waited_ms > (is_new ? limits().read_timeout_ms : limits().idle_timeout_ms))
        Close();
      break;
    }
    case Phase::kReading:
      if (waited_ms <= limits().read_timeout_ms) break;
      Refuse(Refusal(408, "invalid_request_error",
                     "no whole request within " + std::to_string(limits().read_timeout_ms) + " ms"));
      break;
    case Phase::kAnswering:
      if (blocked_ && waited_ms > limits().write_timeout_ms) return Close();
      if (!input_ended_ && !waiting_for_input_ && HasHungUp(socket_)) return OnInputEnd();
      if (!blocked_ && limits().silence_ms > 0 && waited_ms > limits().silence_ms) {
        since_ms_ = now;
        if (const auto listener = listener_) listener->OnSilence();
      }
      break;
    case Phase::kLingering:
      if (waited_ms > kLingerMs) Close();
      break;
    case Phase::kClosed:
      break;
  }
}

}  // namespace tramontane
