#include "server/http/connection.h"

#include <algorithm>
#include <utility>

#include "server/base/peer_address.h"
#include "server/base/request_id.h"
#include "server/http/exchange.h"

namespace tramontane {

Connection::Connection(std::shared_ptr<HttpServerState> shared, std::shared_ptr<ConnectionThread> thread,
                       std::unique_ptr<ByteSocket> socket)
    : shared_(std::move(shared)),
      thread_(std::move(thread)),
      socket_(std::move(socket)),
      client_(AddressShare(socket_->peer())),
      input_(shared_->options.limits, shared_->held_bytes, client_),
      output_(shared_->unread_answers, client_) {
  shared_->connections.Add(client_);
}

void Connection::Enter(Phase phase) {
  if (phase_ == Phase::kAnswering) --shared_->open_exchanges;
  phase_ = phase;
  since_ms_ = thread_->NowMs();
  if (phase_ == Phase::kAnswering) ++shared_->open_exchanges;
  const bool stays = is_over_limit_ && (phase_ == Phase::kIdle || phase_ == Phase::kReading);
  if (place_ && !stays) thread_->Leave(*std::exchange(place_, std::nullopt));
  if (phase_ == Phase::kIdle) StandInLine();
}

void Connection::StandInLine() {
  using enum ConnectionThread::Line;
  const auto line = is_over_limit_ ? kOverLimit : phase_ == Phase::kIdle ? kIdle : kReading;
  if (!place_) place_ = thread_->Join(line, *this);
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
  const bool has_room = phase_ != Phase::kAnswering || input_.has_room_to_read_ahead();
  if (waiting_for_input_ || phase_ == Phase::kClosed || input_ended_ || !has_room) return;
  waiting_for_input_ = true;
  socket_->WhenReadable([self = shared_from_this()] {
    self->waiting_for_input_ = false;
    if (self->phase_ != Phase::kClosed) self->OnReadable();
  });
}

void Connection::OnReadable() {
  const bool is_ahead = phase_ == Phase::kAnswering;
  const size_t room = is_ahead ? input_.HoldRoomToReadAhead() : ConnectionThread::kReadBytes;
  if (room == 0) return;  // until the next sweep, or the end of the answer
  const auto [bytes, state] = socket_->Read(thread_->read_buffer().first(room));
  const std::string_view read(thread_->read_buffer().data(), bytes);
  if (is_ahead) input_.ReadAhead(read);
  if (state == ByteSocket::State::kEnded) return OnInputEnd();
  if (state == ByteSocket::State::kBroken) return Close();
  if (!is_ahead) OnInput(read);
  WaitForInput();
}

void Connection::OnInput(std::string_view bytes) {
  if (phase_ == Phase::kIdle && !bytes.empty()) {
    input_.Begin(thread_->NowNs());
    Enter(Phase::kReading);
  }
  if (phase_ == Phase::kReading) ParseInput(bytes);
}

// The client has closed its socket, or only its sending side: nobody can tell which. A generation is not
// worth computing for somebody who is probably gone; anything else is answered.
void Connection::OnInputEnd() {
  input_ended_ = true;
  const bool has_read_ahead = phase_ == Phase::kIdle && input_.has_read_ahead();
  if (has_read_ahead || (phase_ == Phase::kAnswering && answer_.listener == nullptr)) return;
  Close();
}

void Connection::ParseInput(std::string_view bytes) {
  switch (input_.Parse(bytes)) {
    case RequestInput::State::kRefused:
      return Refuse(input_.refusal());
    case RequestInput::State::kWhole:
      return Dispatch();
    case RequestInput::State::kIncomplete:
      if (input_.TakeHeader() && AnswersHeader()) return;
      StandInLine();
      if (!input_.TakeContinue()) return;
      output_.Append("HTTP/1.1 100 Continue\r\n\r\n");
      return Flush();
  }
}

// Whose it is: what it is called, and where it came from and to.
void Connection::Name(HttpRequest* request) const {
  const std::string* given = request->Header("x-request-id");
  request->id = DrawRequestId();
  request->request_id = given != nullptr && RequestIdFault(*given).empty() ? *given : request->id;
  request->peer = socket_->peer();
  request->on_loopback = shared_->on_loopback;
}

// True: its header was answer enough, and the connection ends with it.
bool Connection::AnswersHeader() {
  if (!shared_->options.on_header) return false;
  HttpRequest header = input_.header();
  Name(&header);
  std::optional<HttpResponse> response = shared_->options.on_header(&header);
  if (!response) {
    attached_ = std::move(header.attached);
    return false;
  }
  input_.Drop();
  Enter(Phase::kAnswering);
  answer_ = {.number = answer_.number + 1,
             .framing = {.request_id = header.request_id, .is_head = header.method == "HEAD"}};
  Respond(answer_.number, *std::move(response), header);
  return true;
}

void Connection::Dispatch() {
  const bool is_new = input_.TakeHeader() && shared_->options.on_header != nullptr;
  ArrivedRequest arrived = input_.Take();
  arrived.request.whole_ns = thread_->NowNs();
  Name(&arrived.request);
  arrived.request.attached = std::exchange(attached_, nullptr);
  std::optional<HttpResponse> response;
  if (is_new) response = shared_->options.on_header(&arrived.request);
  answer_ = {.number = answer_.number + 1,
             .framing = {.request_id = arrived.request.request_id,
                         .is_head = arrived.request.method == "HEAD",
                         .is_chunked = arrived.is_http_1_1,
                         .keep_alive = arrived.keep_alive && !is_over_limit_}};
  Enter(Phase::kAnswering);
  if (response) return Respond(answer_.number, *std::move(response), arrived.request);
  const auto exchange =
      std::make_shared<ConnectionExchange>(shared_from_this(), answer_.number, std::move(arrived));
  answer_.exchange = exchange;
  shared_->handler(exchange);
}

// Answers what is no request, and closes.
void Connection::Refuse(const HttpRefusal& refusal) {
  HttpRequest request = input_.header();
  Name(&request);
  request.attached = std::exchange(attached_, nullptr);
  HttpResponse response =
      shared_->Refused(refusal, request);  // which may be the input's: not after it is dropped
  input_.Drop();
  Enter(Phase::kAnswering);
  answer_ = {.number = answer_.number + 1,
             .framing = {.request_id = request.request_id, .is_head = request.method == "HEAD"}};
  Respond(answer_.number, std::move(response), request);
}

// ---- answering ---------------------------------------------------------------------------------------

bool Connection::IsAnswering(int64_t number, Answer::State state) const {
  return number == answer_.number && phase_ == Phase::kAnswering && answer_.state == state;
}

// A client that does not take its stream while there is no room to keep it.
bool Connection::HoldOrClose(size_t bytes) {
  const bool has_room = output_.TryHold(bytes);
  if (!has_room) Close();
  return has_room;
}

void Connection::Respond(int64_t number, HttpResponse response, const HttpRequest& request) {
  if (!IsAnswering(number, Answer::State::kNone)) return;
  if (!output_.TryHold(response.body.size())) {
    response = shared_->Refused(TooManyUnreadBytes(shared_->unread_answers.max_bytes()), request);
  }
  if (shared_->closing) answer_.framing.keep_alive = false;
  shared_->Answered(request, response.status);
  answer_.framing.WriteWhole(std::move(response), &output_);
  answer_.state = Answer::State::kWhole;
  Flush();
}

void Connection::StartStream(int64_t number, HttpResponse head) {
  if (!IsAnswering(number, Answer::State::kNone)) return;
  // Without chunks only the end of the connection ends it.
  if (shared_->closing || !answer_.framing.is_chunked) answer_.framing.keep_alive = false;
  answer_.status = head.status;
  answer_.framing.WriteStreamHead(std::move(head), &output_);
  answer_.state = Answer::State::kStreaming;
  Flush();
}

void Connection::Write(int64_t number, std::string bytes) {
  if (!IsAnswering(number, Answer::State::kStreaming) || !HoldOrClose(bytes.size())) return;
  answer_.framing.WriteChunk(std::move(bytes), &output_);
  Flush();
}

void Connection::End(int64_t number, std::string last_bytes, const HttpRequest& request) {
  if (!IsAnswering(number, Answer::State::kStreaming) || !HoldOrClose(last_bytes.size())) return;
  shared_->Answered(request, answer_.status);
  answer_.framing.WriteChunk(std::move(last_bytes), &output_);
  answer_.framing.WriteStreamEnd(&output_);
  answer_.state = Answer::State::kWhole;
  Flush();
}

void Connection::Listen(int64_t number, std::shared_ptr<HttpListener> listener) {
  if (number != answer_.number || phase_ != Phase::kAnswering || input_ended_) {
    if (phase_ == Phase::kAnswering) Close();
    return listener->OnHangUp();
  }
  answer_.listener = std::move(listener);
}

void Connection::Abandon(int64_t number) {
  const bool is_open = answer_.state != Answer::State::kWhole;
  if (number == answer_.number && phase_ == Phase::kAnswering && is_open) Close();
}

// Writes what it can without waiting, and the rest as the client takes it.
void Connection::Flush() {
  if (!output_.is_waiting()) WriteOutput();
}

void Connection::WriteOutput() {
  if (phase_ == Phase::kClosed) return;
  switch (output_.WriteTo(*socket_, thread_->NowMs())) {
    case OutputBuffer::State::kWritten:
      return OnFlushed();
    case OutputBuffer::State::kWaiting:
      return socket_->WhenWritable([self = shared_from_this()] { self->WriteOutput(); });
    case OutputBuffer::State::kBroken:
      return Close();
  }
}

void Connection::OnFlushed() {
  if (phase_ != Phase::kAnswering) return;
  since_ms_ = thread_->NowMs();
  if (answer_.state == Answer::State::kWhole) return EndAnswer();
  if (const auto listener = answer_.listener) listener->OnWritten();
}

void Connection::EndAnswer() {
  answer_.listener = nullptr;
  if (!answer_.framing.keep_alive) return Linger();
  Enter(Phase::kIdle);
  if (input_.has_read_ahead()) {
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
  OnInput(input_.TakeReadAhead());
  if (input_ended_ && phase_ != Phase::kAnswering) return Close();
  WaitForInput();
}

// Closing a socket with unread bytes would take the last words back from the client.
void Connection::Linger() {
  socket_->ShutdownSend();
  if (input_ended_) return Close();
  Enter(Phase::kLingering);
  input_.Drop();
  WaitForInput();
}

void Connection::Stop() {
  if (phase_ == Phase::kIdle) return Close();
  if (phase_ == Phase::kReading) return Refuse(ServerStops());
  if (phase_ != Phase::kAnswering || answer_.state == Answer::State::kWhole) return;
  if (const auto listener = answer_.listener) return listener->OnStop();
  if (const auto exchange = answer_.exchange.lock()) exchange->Refuse(ServerStops());
}

void Connection::Close() {
  if (phase_ == Phase::kClosed) return;
  Enter(Phase::kClosed);
  closed_ = true;
  input_.Drop();
  output_.Clear();
  socket_->Close();
  thread_->Remove(shared_from_this());
  if (const auto listener = std::exchange(answer_.listener, nullptr)) listener->OnHangUp();
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
  const bool is_new = answer_.number == 0;
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
  if (output_.HasStalled(now_ms, limits().write_timeout_ms)) return Close();
  if (!input_ended_ && !waiting_for_input_ && socket_->HasHungUp()) return OnInputEnd();
  WaitForInput();
  if (const auto listener = answer_.listener) listener->OnTick();
  if (phase_ != Phase::kAnswering) return;  // that was the end of the answer
  if (!output_.is_waiting() && limits().silence_ms > 0 && now_ms - since_ms_ > limits().silence_ms) {
    since_ms_ = now_ms;
    if (const auto listener = answer_.listener) listener->OnSilence();
  }
}

}  // namespace tramontane
