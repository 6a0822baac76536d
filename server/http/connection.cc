#include "server/http/connection.h"

#include <algorithm>
#include <charconv>
#include <ctime>

#include "server/base/request_id.h"
#include "server/http/exchange.h"

namespace tramontane {
namespace {

constexpr size_t kKeptBufferBytes = 64 << 10;  // a larger buffer is given back once it is written

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
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

}  // namespace

Connection::Connection(std::shared_ptr<HttpServerState> shared, std::shared_ptr<ConnectionThread> thread,
                       std::unique_ptr<ByteSocket> socket)
    : shared_(std::move(shared)),
      thread_(std::move(thread)),
      socket_(std::move(socket)),
      parser_(shared_->options.limits),
      held_(shared_->held_bytes) {
  ++shared_->connections;
}

void Connection::Enter(Phase phase) {
  if (phase_ == Phase::kAnswering) --shared_->open_exchanges;
  phase_ = phase;
  since_ms_ = thread_->NowMs();
  if (phase_ == Phase::kAnswering) ++shared_->open_exchanges;
  const bool can_make_room = phase_ == Phase::kIdle || (phase_ == Phase::kReading && is_over_limit_);
  if (can_make_room && !place_) place_ = thread_->Join(line(), *this);
  if (!can_make_room && place_) thread_->Leave(line(), *std::exchange(place_, std::nullopt));
}

ConnectionThread::Line Connection::line() const {
  return is_over_limit_ ? ConnectionThread::Line::kOverLimit : ConnectionThread::Line::kIdle;
}

// ---- reading -----------------------------------------------------------------------------------------

void Connection::Begin() {
  Enter(Phase::kIdle);
  thread_->Add(shared_from_this());
  if (shared_->stopping) return Close();
  WaitForInput();
}

void Connection::BeginOverLimit() {
  is_over_limit_ = true;
  Begin();
}

void Connection::WaitForInput() {
  const bool has_room = phase_ != Phase::kAnswering || input_.size() < kReadAheadBytes;
  if (waiting_for_input_ || phase_ == Phase::kClosed || input_ended_ || !has_room) return;
  waiting_for_input_ = true;
  socket_->WhenReadable([self = shared_from_this()] {
    self->waiting_for_input_ = false;
    if (self->phase_ != Phase::kClosed) self->OnReadable();
  });
}

void Connection::OnReadable() {
  const size_t room = HoldRoomToRead();
  if (room == 0) return;  // until the next sweep, or the end of the answer
  const auto [bytes, state] = socket_->Read(thread_->read_buffer().first(room));
  if (phase_ == Phase::kAnswering) held_.Set(static_cast<int64_t>(input_.size() + bytes));
  if (state == ByteSocket::State::kEnded) return OnInputEnd();
  if (state == ByteSocket::State::kBroken) return Close();
  OnInput(std::string_view(thread_->read_buffer().data(), bytes));
  WaitForInput();
}

// How much may be read now. What is read ahead finds its room before it comes: it can wait where it is.
size_t Connection::HoldRoomToRead() {
  if (phase_ != Phase::kAnswering) return ConnectionThread::kReadBytes;
  const size_t room = kReadAheadBytes - std::min(kReadAheadBytes, input_.size());
  return held_.TrySet(static_cast<int64_t>(input_.size() + room)) ? room : 0;
}

void Connection::OnInput(std::string_view bytes) {
  switch (phase_) {
    case Phase::kIdle:
      if (bytes.empty()) break;
      first_byte_ns_ = thread_->NowNs();
      Enter(Phase::kReading);
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
  if (parser_.failed()) return Refuse(parser_.refusal());
  if (!HoldInput()) return Refuse(TooManyBodyBytes(shared_->held_bytes.max_bytes()));
  if (parser_.done()) return Dispatch();
  if (parser_.expects_continue() && !continue_sent_) {
    continue_sent_ = true;
    output_.append("HTTP/1.1 100 Continue\r\n\r\n");
    Flush();
  }
}

// False: there is no room for it. Only a body has to find room; what comes before it has a bound of its own,
// and a request without a body may be the question how the server is.
bool Connection::HoldInput() {
  const int64_t bytes = static_cast<int64_t>(input_.size()) + parser_.held_bytes();
  if (parser_.body_bytes() > 0) return held_.TrySet(bytes);
  held_.Set(bytes);
  return true;
}

void Connection::DropInput() {
  std::string().swap(input_);
  parser_ = HttpRequestParser(limits());
  held_.Set(0);
}

// Whose it is: what it is called, and where it came to.
void Connection::Name(HttpRequest* request) {
  const std::string* given = request->Header("x-request-id");
  request->id = DrawRequestId();
  request->request_id = given != nullptr && RequestIdFault(*given).empty() ? *given : request->id;
  request->peer = socket_->peer();
  request->on_loopback = shared_->on_loopback;
  request_id_ = request->request_id;
}

void Connection::Dispatch() {
  const bool is_http_1_1 = parser_.is_http_1_1();
  keep_alive_ = parser_.keep_alive() && !is_over_limit_;
  HttpRequest request = parser_.Take();
  request.first_byte_ns = first_byte_ns_;
  request.whole_ns = thread_->NowNs();
  Name(&request);
  is_head_ = request.method == "HEAD";
  is_chunked_ = is_http_1_1;
  streaming_ = answered_ = continue_sent_ = false;
  Enter(Phase::kAnswering);
  parser_ = HttpRequestParser(limits());
  HeldBytes body = held_.Split(static_cast<int64_t>(request.body.size()));
  held_.Set(static_cast<int64_t>(input_.size()));
  const auto exchange = std::make_shared<ConnectionExchange>(shared_from_this(), ++number_,
                                                             std::move(request), std::move(body));
  exchange_ = exchange;
  shared_->handler(exchange);
}

// Answers what is no request, and closes.
void Connection::Refuse(const HttpRefusal& refusal) {
  ++number_;
  HttpRequest request = parser_.header();
  Name(&request);
  HttpResponse response =
      shared_->Refused(refusal, request);  // which may be the parser's: not after DropInput
  DropInput();
  Enter(Phase::kAnswering);
  is_head_ = request.method == "HEAD";
  keep_alive_ = streaming_ = answered_ = false;
  Respond(number_, response);
}

// ---- answering ---------------------------------------------------------------------------------------

std::string Connection::Head(const HttpResponse& response, const std::string& length_field) const {
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + " " + ReasonPhrase(response.status) +
                     "\r\ndate: " + HttpDate() + "\r\nx-request-id: " + request_id_ + "\r\n";
  if (!response.content_type.empty()) head += "content-type: " + response.content_type + "\r\n";
  for (const auto& [name, value] : response.headers) {
    head.append(name).append(": ").append(value).append("\r\n");
  }
  return head + length_field + (keep_alive_ ? "connection: keep-alive\r\n\r\n" : "connection: close\r\n\r\n");
}

void Connection::Respond(int64_t number, const HttpResponse& response) {
  if (number != number_ || phase_ != Phase::kAnswering || answered_ || streaming_) return;
  if (shared_->closing) keep_alive_ = false;
  const bool has_length = response.status != 204;
  output_ +=
      Head(response, has_length ? "content-length: " + std::to_string(response.body.size()) + "\r\n" : "");
  if (!is_head_) output_ += response.body;
  answered_ = true;
  Flush();
}

void Connection::StartStream(int64_t number, const HttpResponse& head) {
  if (number != number_ || phase_ != Phase::kAnswering || answered_ || streaming_) return;
  if (shared_->closing || !is_chunked_)
    keep_alive_ = false;  // without chunks only the end of the connection ends it
  streaming_ = true;
  output_ += Head(head, is_chunked_ ? "transfer-encoding: chunked\r\n" : "");
  Append(head.body);
  Flush();
}

void Connection::Write(int64_t number, std::string_view bytes) {
  if (number != number_ || phase_ != Phase::kAnswering || answered_ || !streaming_) return;
  Append(bytes);
  Flush();
}

void Connection::End(int64_t number, std::string_view last_bytes) {
  if (number != number_ || phase_ != Phase::kAnswering || answered_ || !streaming_) return;
  Append(last_bytes);
  if (is_chunked_ && !is_head_) output_ += "0\r\n\r\n";
  answered_ = true;
  Flush();
}

void Connection::Listen(int64_t number, std::shared_ptr<HttpListener> listener) {
  if (number != number_ || phase_ != Phase::kAnswering || input_ended_) {
    if (phase_ == Phase::kAnswering) Close();
    return listener->OnHangUp();
  }
  listener_ = std::move(listener);
}

void Connection::Abandon(int64_t number) {
  if (number == number_ && phase_ == Phase::kAnswering && !answered_) Close();
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
  if (!blocked_) WriteOutput();
}

void Connection::WriteOutput() {
  if (phase_ == Phase::kClosed) return;
  while (written_ < output_.size()) {
    const auto [bytes, state] = socket_->Write(std::string_view(output_).substr(written_));
    written_ += bytes;
    taken_bytes_ += bytes;
    if (state == ByteSocket::State::kLater) return WaitForRoom();
    if (state != ByteSocket::State::kOpen) return Close();
  }
  blocked_ = false;
  output_.clear();
  written_ = 0;
  if (output_.capacity() > kKeptBufferBytes) std::string().swap(output_);
  OnFlushed();
}

// A client that takes its answer crumb by crumb does not take it: only kLeastTakenBytes wind its clock up
// again.
void Connection::WaitForRoom() {
  if (!blocked_ || taken_bytes_ >= kLeastTakenBytes) {
    blocked_since_ms_ = thread_->NowMs();
    taken_bytes_ = 0;
  }
  blocked_ = true;
  socket_->WhenWritable([self = shared_from_this()] { self->WriteOutput(); });
}

void Connection::OnFlushed() {
  if (phase_ != Phase::kAnswering) return;
  since_ms_ = thread_->NowMs();
  if (answered_) return EndAnswer();
  if (const auto listener = listener_) listener->OnWritten();
}

void Connection::EndAnswer() {
  listener_ = nullptr;
  if (!keep_alive_) return Linger();
  Enter(Phase::kIdle);
  if (!input_.empty()) {
    // What came meanwhile, after this answer's callers have returned.
    thread_->Post([self = shared_from_this()] { self->OnReadAhead(); });
  } else if (input_ended_) {
    Close();
  } else {
    WaitForInput();
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
  socket_->ShutdownSend();
  if (input_ended_) return Close();
  Enter(Phase::kLingering);
  DropInput();
  WaitForInput();
}

void Connection::Stop() {
  if (phase_ == Phase::kIdle) return Close();
  if (phase_ == Phase::kReading) return Refuse(ServerStops());
  if (phase_ != Phase::kAnswering || answered_) return;
  if (const auto listener = listener_) return listener->OnStop();
  if (const auto exchange = exchange_.lock()) exchange->Refuse(ServerStops());
}

void Connection::Close() {
  if (phase_ == Phase::kClosed) return;
  Enter(Phase::kClosed);
  closed_ = true;
  DropInput();
  std::string().swap(output_);
  socket_->Close();
  thread_->Remove(shared_from_this());
  if (const auto listener = std::exchange(listener_, nullptr)) listener->OnHangUp();
}

// ---- clocks ------------------------------------------------------------------------------------------

void Connection::Sweep() {
  const int64_t now_ms = thread_->NowMs();
  const int64_t waited_ms = now_ms - since_ms_;
  switch (phase_) {
    case Phase::kIdle:
      return SweepIdle(waited_ms);
    case Phase::kReading:
      return SweepReading(waited_ms);
    case Phase::kAnswering:
      return SweepAnswer(now_ms);
    case Phase::kLingering:
      if (waited_ms > kLingerMs) Close();
      break;
    case Phase::kClosed:
      break;
  }
}

int64_t Connection::read_timeout_ms() const {
  return is_over_limit_ ? std::min(kLingerMs, limits().read_timeout_ms) : limits().read_timeout_ms;
}

// One that is new has its time also while the server drains: it may be a probe.
void Connection::SweepIdle(int64_t waited_ms) {
  const bool is_new = number_ == 0;
  const int64_t most_ms = is_new ? read_timeout_ms() : limits().idle_timeout_ms;
  if (waited_ms > most_ms && is_over_limit_) return Refuse(TooManyConnections());
  if (waited_ms > most_ms || (shared_->closing && !is_new)) Close();
}

// From the first byte of the request; those that come later do not wind the clock up.
void Connection::SweepReading(int64_t waited_ms) {
  if (waited_ms <= read_timeout_ms()) return;
  if (is_over_limit_) return Refuse(TooManyConnections());
  Refuse({.status = 408,
          .message = "no whole request within " + std::to_string(limits().read_timeout_ms) + " ms"});
}

void Connection::SweepAnswer(int64_t now_ms) {
  if (blocked_ && now_ms - blocked_since_ms_ > limits().write_timeout_ms) return Close();
  if (!input_ended_ && !waiting_for_input_ && socket_->HasHungUp()) return OnInputEnd();
  WaitForInput();
  if (const auto listener = listener_) listener->OnTick();
  if (phase_ != Phase::kAnswering) return;  // that was the end of the answer
  if (!blocked_ && limits().silence_ms > 0 && now_ms - since_ms_ > limits().silence_ms) {
    since_ms_ = now_ms;
    if (const auto listener = listener_) listener->OnSilence();
  }
}

}  // namespace tramontane
