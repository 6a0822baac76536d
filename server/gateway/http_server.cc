#include "server/gateway/http_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <charconv>
#include <chrono>
#include <ctime>
#include <latch>
#include <mutex>
#include <optional>
#include <random>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "server/gateway/http_parser.h"

namespace tramontane {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kReadBytes = 64 << 10;        // of one read
constexpr size_t kReadAheadBytes = 64 << 10;   // kept of what follows a request that is being answered
constexpr size_t kKeptBufferBytes = 64 << 10;  // a larger buffer is given back once it is written
constexpr int64_t kLingerMs = 2000;            // for the client to read the last words of a connection
constexpr int32_t kMaxRefused = 256;           // connections over the limit that are told so at once
constexpr size_t kMaxRequestIdBytes = 128;

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

// What a client named its request, where that can be logged and sent back as it is.
bool IsUsableRequestId(const std::string& id) {
  return !id.empty() && id.size() <= kMaxRequestIdBytes &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c <= '~'; });
}

std::string DrawRequestId() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string id = "req-";
  for (uint64_t bits = random(), i = 0; i < 16; ++i, bits >>= 4) id.push_back(kDigits[bits & 15]);
  return id;
}

class Connection;

// What all connections share.
struct Shared {
  Shared(const HttpServerOptions& options, HttpServer::Handler handler)
      : options(options),
        handler(std::move(handler)),
        handlers(static_cast<size_t>(options.handler_threads)) {}

  const HttpServerOptions options;
  const HttpServer::Handler handler;
  asio::thread_pool handlers;
  std::atomic<bool> closing{false};   // connections end after their answer
  std::atomic<bool> stopping{false};  // at once
  std::atomic<int64_t> open_exchanges{0};
  std::atomic<int64_t> connections{0};
  std::atomic<int64_t> held_body_bytes{0};
};

// A thread and the connections that live on it. Work from other threads comes through one mailbox, so that a
// hundred streams that are ready at once wake it once.
class IoThread : public std::enable_shared_from_this<IoThread> {
 public:
  IoThread() : context_(1), timer_(context_), work_(asio::make_work_guard(context_)) {}

  void Start(int64_t sweep_ms) {
    sweep_ms_ = sweep_ms;
    thread_ = std::thread([this] {
      thread_id_ = std::this_thread::get_id();
      ScheduleSweep();
      context_.run();
    });
  }

  asio::io_context& context() { return context_; }
  bool is_current() const { return thread_id_.load() == std::this_thread::get_id(); }

  // False, and nothing done, once the thread is gone.
  bool Post(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    mailbox_.push_back(std::move(work));
    if (mailbox_.size() == 1) asio::post(context_, [this] { RunMailbox(); });
    return true;
  }

  // On the thread.
  void Add(std::shared_ptr<Connection> connection) { connections_.insert(std::move(connection)); }
  void Remove(const std::shared_ptr<Connection>& connection) { connections_.erase(connection); }
  std::array<char, kReadBytes>& read_buffer() { return read_buffer_; }

  // From another thread: ends every connection, and returns when that is done.
  void CloseConnections();
  // From another thread: ends the thread, and runs here what was posted too late for it.
  void Join();

 private:
  void RunMailbox() {
    {
      std::lock_guard lock(mutex_);
      running_.swap(mailbox_);
    }
    for (auto& work : running_) work();
    running_.clear();
  }

  void ScheduleSweep() {
    timer_.expires_after(std::chrono::milliseconds(sweep_ms_));
    timer_.async_wait([this](error_code) {
      if (stopping_) return;
      Sweep();
      ScheduleSweep();
    });
  }
  void Sweep();  // every connection looks at its clocks

  asio::io_context context_;
  asio::steady_timer timer_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_{};
  int64_t sweep_ms_ = 0;
  bool stopping_ = false;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  std::array<char, kReadBytes> read_buffer_;  // of whichever connection reads
  std::vector<std::function<void()>> running_;

  std::mutex mutex_;  // guards what follows
  std::vector<std::function<void()>> mailbox_;
  bool closed_ = false;
};

// One socket and its state. On its io thread only, but for the const members.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Shared> shared, std::shared_ptr<IoThread> thread, tcp::socket socket)
      : shared_(std::move(shared)),
        thread_(std::move(thread)),
        socket_(std::move(socket)),
        parser_(shared_->options.limits) {
    ++shared_->connections;
  }
  ~Connection() { --shared_->connections; }

  IoThread& thread() const { return *thread_; }

  void Begin();
  void BeginRefused();  // one connection too many
  void Sweep(int64_t now);
  void Close();

  // ---- from the exchange in progress, by its number; of others nothing is done ----
  void Respond(int64_t exchange, HttpResponse response);
  void StartStream(int64_t exchange, HttpResponse head);
  void Write(int64_t exchange, std::string_view bytes);
  void End(int64_t exchange, std::string_view last_bytes);
  void Listen(int64_t exchange, std::shared_ptr<HttpListener> listener);

 private:
  enum class Phase {
    kIdle,       // between requests
    kReading,    // part of a request is here
    kAnswering,  // an exchange is open
    kLingering,  // the last words are out; what comes is thrown away
    kClosed,
  };

  const HttpLimits& limits() const { return shared_->options.limits; }

  void WaitForInput();
  void OnReadable();
  void OnInput(std::string_view bytes);
  void OnInputEnd();
  void ParseInput(std::string_view bytes);
  bool HoldBody();
  void Dispatch();
  void Refuse(const ApiError& error);
  void BeginAnswer();

  std::string Head(const HttpResponse& response, const std::string& length_field) const;
  void Append(std::string_view chunk);
  void Flush();
  void OnFlushed();
  void EndAnswer();
  void OnReadAhead();
  void Linger();

  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<IoThread> thread_;
  tcp::socket socket_;
  Phase phase_ = Phase::kIdle;
  int64_t since_ms_ = 0;  // the phase began, or, answering: the last write began or made progress

  // Reading.
  HttpRequestParser parser_;
  std::string input_;  // read, and not yet taken by the parser
  bool waiting_for_input_ = false;
  bool input_ended_ = false;  // the client has shut down its side
  bool continue_sent_ = false;
  int64_t held_body_bytes_ = 0;  // counted in Shared::held_body_bytes

  // Answering.
  int64_t exchange_ = 0;  // number of the exchange in progress, else of the last one
  std::string request_id_;
  std::shared_ptr<HttpListener> listener_;
  bool is_head_ = false;     // HEAD: no body is sent
  bool keep_alive_ = false;  // after this answer
  bool is_chunked_ = false;
  bool streaming_ = false;
  bool answered_ = false;  // all of the answer is in output_
  std::string output_;     // of which [written_, size) has to be written
  size_t written_ = 0;
  bool blocked_ = false;  // waiting for room in the socket
};

// The face of a connection towards endpoints.
class Exchange : public HttpExchange {
 public:
  Exchange(std::shared_ptr<Connection> connection, int64_t number, HttpRequest request)
      : connection_(std::move(connection)), number_(number), request_(std::move(request)) {}
  ~Exchange() override {
    if (!is_answered_) Respond(ErrorResponse(Refusal(500, "server_error", "this request was given up")));
  }

  const HttpRequest& request() const override { return request_; }

  void Respond(HttpResponse response) override {
    is_answered_ = true;
    Do([connection = connection_, number = number_, response = std::move(response)]() mutable {
      connection->Respond(number, std::move(response));
    });
  }
  void StartStream(HttpResponse head) override {
    is_answered_ = true;
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
  const HttpRequest request_;
  std::atomic<bool> is_answered_{false};
};

// ---- IoThread
// -------------------------------------------------------------------------------------------------

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
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  RunMailbox();
}

// ---- Connection: reading
// --------------------------------------------------------------------------------------

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
  request.request_id = given != nullptr && IsUsableRequestId(*given) ? *given : request.id;
  request_id_ = request.request_id;
  is_head_ = request.method == "HEAD";
  is_chunked_ = is_http_1_1;
  streaming_ = answered_ = continue_sent_ = false;
  BeginAnswer();
  parser_ = HttpRequestParser(limits());
  auto exchange = std::make_shared<Exchange>(shared_from_this(), ++exchange_, std::move(request));
  asio::post(shared_->handlers, [shared = shared_, exchange = std::move(exchange)]() mutable {
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

// ---- Connection: answering
// --------------------------------------------------------------------------------------

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

// ---- Connection: clocks
// -----------------------------------------------------------------------------------------

// With input left unread, the system alone knows whether the client is still there.
bool HasHungUp(tcp::socket& socket) {
  pollfd state{};
  state.fd = socket.native_handle();
  state.events = POLLRDHUP;
  return poll(&state, 1, 0) > 0;
}

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

// ---- listening
// ----------------------------------------------------------------------------------------------------

struct HostPort {
  std::string host;
  std::string port;
};

// "127.0.0.1:8000", "[::1]:0".
std::optional<HostPort> SplitAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) return std::nullopt;
  HostPort parts{address.substr(0, colon), address.substr(colon + 1)};
  if (parts.host.size() >= 2 && parts.host.front() == '[' && parts.host.back() == ']') {
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  }
  if (parts.host.empty()) return std::nullopt;
  return parts;
}

// As many open files as the connections need, where the system's hard limit allows it.
void RaiseOpenFileLimit(int64_t connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted =
      std::min<rlim_t>(limit.rlim_max, static_cast<rlim_t>(connections + kMaxRefused + 256));
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// The shortest of the clocks, four times in its span.
int64_t SweepMs(const HttpLimits& limits) {
  int64_t shortest =
      std::min({limits.read_timeout_ms, limits.idle_timeout_ms, limits.write_timeout_ms, kLingerMs});
  if (limits.silence_ms > 0) shortest = std::min(shortest, limits.silence_ms);
  return std::clamp<int64_t>(shortest / 4, 5, 500);
}

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpServerOptions& options, Handler handler)
      : shared(std::make_shared<Shared>(options, std::move(handler))) {
    for (int32_t i = 0; i < options.io_threads; ++i) threads.push_back(std::make_shared<IoThread>());
    acceptor.emplace(threads.front()->context());
    retry.emplace(threads.front()->context());
  }

  Status Bind();
  void Accept();
  void OnAccepted(std::shared_ptr<IoThread> thread, tcp::socket socket);

  const std::shared_ptr<Shared> shared;
  std::vector<std::shared_ptr<IoThread>> threads;
  // On the first of the threads.
  std::optional<tcp::acceptor> acceptor;
  std::optional<asio::steady_timer> retry;
  size_t next_thread = 0;
  std::string address;
};

Status HttpServer::Impl::Bind() {
  const std::string& wanted = shared->options.address;
  const auto parts = SplitAddress(wanted);
  if (!parts) return InvalidArgument("http_address: \"" + wanted + "\" is not HOST:PORT");
  error_code fault;
  tcp::resolver resolver(threads.front()->context());
  const auto found = resolver.resolve(parts->host, parts->port, tcp::resolver::passive, fault);
  if (fault) return Unavailable("http_address: cannot listen on " + wanted + ": " + fault.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor->open(endpoint.protocol(), fault);
  if (!fault) acceptor->set_option(tcp::acceptor::reuse_address(true), fault);
  if (!fault) acceptor->bind(endpoint, fault);
  if (!fault) acceptor->listen(asio::socket_base::max_listen_connections, fault);
  if (fault) return Unavailable("http_address: cannot listen on " + wanted + ": " + fault.message());
  address = wanted.substr(0, wanted.rfind(':') + 1) + std::to_string(acceptor->local_endpoint().port());
  return Status::Ok();
}

void HttpServer::Impl::Accept() {
  const auto thread = threads[next_thread++ % threads.size()];
  acceptor->async_accept(thread->context(), [this, thread](error_code fault, tcp::socket socket) {
    if (!acceptor->is_open()) return;
    if (!fault) {
      OnAccepted(thread, std::move(socket));
      return Accept();
    }
    // No file descriptors, most likely: they come back when others close.
    retry->expires_after(std::chrono::milliseconds(50));
    retry->async_wait([this](error_code stopped) {
      if (!stopped && acceptor->is_open()) Accept();
    });
  });
}

void HttpServer::Impl::OnAccepted(std::shared_ptr<IoThread> thread, tcp::socket socket) {
  error_code fault;
  socket.non_blocking(true, fault);
  if (!fault) socket.set_option(tcp::no_delay(true), fault);
  if (fault) return;
  const int64_t open = shared->connections;
  const int64_t most = shared->options.limits.max_connections;
  if (open >= most + kMaxRefused) return;
  const auto connection = std::make_shared<Connection>(shared, thread, std::move(socket));
  thread->Post([connection, refused = open >= most] {
    if (refused) {
      connection->BeginRefused();
    } else {
      connection->Begin();
    }
  });
}

StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options, Handler handler) {
  RaiseOpenFileLimit(options.limits.max_connections);
  auto impl = std::make_unique<Impl>(options, std::move(handler));
  TM_RETURN_IF_ERROR(impl->Bind());
  impl->Accept();
  for (const auto& thread : impl->threads) thread->Start(SweepMs(options.limits));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() { Stop(); }

const std::string& HttpServer::address() const { return impl_->address; }
int64_t HttpServer::open_exchanges() const { return impl_->shared->open_exchanges; }
void HttpServer::CloseWhenAnswered() { impl_->shared->closing = true; }

void HttpServer::Stop() {
  impl_->threads.front()->Post([impl = impl_.get()] {
    error_code ignored;
    impl->acceptor->close(ignored);
    impl->retry->cancel();
  });
  impl_->shared->stopping = true;
  for (const auto& thread : impl_->threads) thread->CloseConnections();
  // Handlers that still run may begin to listen: the threads tell them of the hang-up.
  impl_->shared->handlers.join();
  for (const auto& thread : impl_->threads) thread->Join();
}

}  // namespace tramontane
