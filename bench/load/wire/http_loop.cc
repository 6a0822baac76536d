#include "bench/load/wire/http_loop.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "bench/load/clock.h"
#include "bench/load/wire/stamp.h"
#include "kernels/core/check.h"

namespace tramontane::load {
namespace {

constexpr int kMaxReady = 256;            // sockets read before any is parsed
constexpr size_t kReadBytes = 16 * 1024;  // of one read; what is more comes with the next
constexpr int kHandledBetweenSends = 16;  // answers parsed before new requests are looked for
constexpr int64_t kEndingNs = 1'000'000'000;

std::string ErrnoText(int error) { return std::strerror(error); }

}  // namespace

HttpLoop::HttpLoop(std::shared_ptr<const WireTarget> target)
    : target_(std::move(target)),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      read_bytes_(kMaxReady * kReadBytes),
      results_(kMaxReady) {
  TM_CHECK(poll_ >= 0 && wake_ >= 0, "no poll set: %s", std::strerror(errno));
  epoll_event interest{};
  interest.events = EPOLLIN;
  epoll_ctl(poll_, EPOLL_CTL_ADD, wake_, &interest);
  thread_ = std::thread([this] { Run(); });
}

HttpLoop::~HttpLoop() {
  Abort();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  has_mail_ = true;
  eventfd_write(wake_, 1);
  thread_.join();
  for (const auto& connection : connections_) close(connection->fd);
  close(poll_);
  close(wake_);
}

void HttpLoop::Send(OutgoingRequest request, Transport::Done done) {
  auto exchange =
      std::make_unique<HttpExchange>(std::move(request), std::move(done), target_->answer_rules());
  exchange->bytes = target_->RequestBytes(exchange->request);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    inbox_.push_back(std::move(exchange));
  }
  if (!has_mail_.exchange(true)) eventfd_write(wake_, 1);
}

void HttpLoop::Abort() {
  std::unique_lock<std::mutex> lock(mutex_);
  abort_ = true;
  has_mail_ = true;
  eventfd_write(wake_, 1);
  aborted_.wait(lock, [this] { return !abort_; });
}

int64_t HttpLoop::CpuNs() const {
  clockid_t clock{};
  timespec time{};
  if (pthread_getcpuclockid(const_cast<std::thread&>(thread_).native_handle(), &clock) != 0) return 0;
  clock_gettime(clock, &time);
  return ToNs(time);
}

void HttpLoop::Run() {
  bool stops = false;
  while (!stops) {
    std::array<epoll_event, kMaxReady> ready;
    const int count = epoll_wait(poll_, ready.data(), kMaxReady, MillisecondsToWait());
    int reads = 0;
    for (int i = 0; i < count; ++i) {
      auto* connection = static_cast<HttpConnection*>(ready[static_cast<size_t>(i)].data.ptr);
      if (connection == nullptr) continue;  // wake_
      results_[static_cast<size_t>(reads++)] = {connection, 0, -1, EAGAIN,
                                                ready[static_cast<size_t>(i)].events};
    }
    ReadReady(reads);
    DrainInbox();
    HandleReady(reads);
    DrainInbox();
    ExpireDeadlines();
    closed_.clear();
    const std::lock_guard<std::mutex> lock(mutex_);
    stops = stop_;
  }
}

int HttpLoop::MillisecondsToWait() const {
  if (deadlines_.empty()) return -1;
  const int64_t left_ns = deadlines_.begin()->first - NowNs();
  if (left_ns <= 0) return 0;
  return static_cast<int>(std::min<int64_t>(left_ns / kNsPerMs + 1, 60'000));
}

// Nothing but reads and stamps.
void HttpLoop::ReadReady(int ready) {
  for (int i = 0; i < ready; ++i) {
    ReadResult& result = results_[static_cast<size_t>(i)];
    const bool is_connecting = result.connection->stage == HttpConnection::Stage::kConnecting;
    if (!is_connecting && (result.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
      result.count =
          recv(result.connection->fd, &read_bytes_[static_cast<size_t>(i) * kReadBytes], kReadBytes, 0);
      result.error = errno;
    }
    result.at_ns = NowNs();
    // Whatever a kept connection without a request has to say, it ends it; before one is given to it.
    if (result.connection->stage == HttpConnection::Stage::kIdle) Close(result.connection);
  }
}

void HttpLoop::HandleReady(int ready) {
  for (int i = 0; i < ready; ++i) {
    const ReadResult& result = results_[static_cast<size_t>(i)];
    const size_t count = result.count > 0 ? static_cast<size_t>(result.count) : 0;
    Handle(result, std::string_view(&read_bytes_[static_cast<size_t>(i) * kReadBytes], count));
    if (i % kHandledBetweenSends == kHandledBetweenSends - 1) DrainInbox();
  }
}

void HttpLoop::Handle(const ReadResult& result, std::string_view bytes) {
  HttpConnection* const connection = result.connection;
  if (connection->stage == HttpConnection::Stage::kClosed) return;
  if (connection->stage == HttpConnection::Stage::kConnecting) {
    return HandleConnecting(connection, result.at_ns);
  }
  if (result.count > 0) {
    HandleBytes(connection, bytes, result.at_ns);
  } else if (result.count == 0) {
    HandleClosed(connection, result.at_ns, "the server closed the connection");
  } else if (result.error != EAGAIN && result.error != EINTR) {
    HandleClosed(connection, result.at_ns, ErrnoText(result.error));
  }
  const bool is_open = connection->stage != HttpConnection::Stage::kClosed;
  if (is_open && (result.events & EPOLLOUT) != 0) SendRequest(connection);
}

void HttpLoop::HandleConnecting(HttpConnection* connection, int64_t at_ns) {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return HandleClosed(connection, at_ns, ErrnoText(error));
  if (target_->has_tls()) {
    connection->stage = HttpConnection::Stage::kHandshake;
    connection->tls = std::make_unique<TlsSession>(target_->tls(), target_->host());
    connection->tls->Handshake();
    connection->tls->TakeOutput(&connection->output);
  } else {
    connection->stage = HttpConnection::Stage::kBusy;
    connection->exchange->record.connected_ns = at_ns;
    connection->output = connection->exchange->bytes;
  }
  SendRequest(connection);
}

void HttpLoop::HandleBytes(HttpConnection* connection, std::string_view bytes, int64_t at_ns) {
  bool is_open = true;
  if (connection->tls != nullptr) {
    TlsSession& tls = *connection->tls;
    tls.Receive(bytes);
    if (!tls.established()) {
      const bool went_on = tls.Handshake();
      tls.TakeOutput(&connection->output);
      if (tls.established()) {
        connection->stage = HttpConnection::Stage::kBusy;
        connection->exchange->record.connected_ns = at_ns;
        tls.Encrypt(connection->exchange->bytes);
        tls.TakeOutput(&connection->output);
      }
      SendRequest(connection);  // an alert, too
      if (!went_on) return HandleClosed(connection, at_ns, "TLS: " + tls.error());
      if (!tls.established()) return;
    }
    plain_.clear();
    is_open = tls.Decrypt(&plain_);
    tls.TakeOutput(&connection->output);  // answers to key updates
    if (connection->sent < connection->output.size()) SendRequest(connection);
    bytes = plain_;
  }
  if (!bytes.empty()) connection->exchange->reader.Read(bytes, at_ns);
  AfterRead(connection, is_open, at_ns);
}

void HttpLoop::AfterRead(HttpConnection* connection, bool is_open, int64_t at_ns) {
  HttpExchange& exchange = *connection->exchange;
  if (!is_open) return HandleClosed(connection, at_ns, "TLS: " + connection->tls->error());
  if (!exchange.reader.complete()) return;
  Report(&exchange);
  // A reply that overtook its own request leaves the connection in the middle of it.
  const bool is_sent = connection->sent == connection->output.size();
  if (exchange.reader.reusable() && is_sent && idle_.size() < kMaxIdleConnections) {
    SetDeadline(connection, 0);
    connection->exchange.reset();
    connection->is_kept = true;
    connection->stage = HttpConnection::Stage::kIdle;
    idle_.push_back(connection);
  } else if (exchange.reader.awaits_end()) {
    if (connection->stage != HttpConnection::Stage::kEnding) SetDeadline(connection, at_ns + kEndingNs);
    connection->stage = HttpConnection::Stage::kEnding;
  } else {
    Close(connection);
  }
}

// By the server, by an error, or because it never came about.
void HttpLoop::HandleClosed(HttpConnection* connection, int64_t at_ns, const std::string& how) {
  const HttpConnection::Stage stage = connection->stage;
  const size_t next_address = connection->address_index + 1;
  const bool was_kept = connection->is_kept;
  std::unique_ptr<HttpExchange> exchange = std::move(connection->exchange);
  Close(connection);
  if (exchange == nullptr || exchange->done == nullptr) return;
  if (stage == HttpConnection::Stage::kConnecting && next_address < target_->addresses().size()) {
    return Open(std::move(exchange), next_address);
  }
  if (stage == HttpConnection::Stage::kConnecting || stage == HttpConnection::Stage::kHandshake) {
    return Refuse(std::move(exchange), how);
  }
  if (was_kept && !exchange->reader.has_bytes()) {
    ++exchange->record.reconnects;  // the new connection is not kept: there is no second time
    return Open(std::move(exchange), 0);
  }
  exchange->reader.Close(at_ns, how);
  Report(exchange.get());
}

void HttpLoop::DrainInbox() {
  if (!has_mail_.load()) return;
  std::vector<std::unique_ptr<HttpExchange>> mail;
  bool aborts = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    has_mail_ = false;
    eventfd_t wakes = 0;
    eventfd_read(wake_, &wakes);
    mail.swap(inbox_);
    aborts = abort_;
  }
  for (std::unique_ptr<HttpExchange>& exchange : mail) Start(std::move(exchange));
  if (!aborts) return;
  AbandonAll();
  const std::lock_guard<std::mutex> lock(mutex_);
  abort_ = false;
  aborted_.notify_all();
}

void HttpLoop::Start(std::unique_ptr<HttpExchange> exchange) {
  if (idle_.empty()) {
    exchange->record.sent_ns = NowNs();
    return Open(std::move(exchange), 0);
  }
  HttpConnection* const connection = idle_.back();
  idle_.pop_back();
  connection->stage = HttpConnection::Stage::kBusy;
  connection->output.clear();
  connection->sent = 0;
  if (connection->tls != nullptr) {
    connection->tls->Encrypt(exchange->bytes);
    connection->tls->TakeOutput(&connection->output);
  } else {
    connection->output = exchange->bytes;
  }
  connection->exchange = std::move(exchange);
  connection->exchange->record.sent_ns = NowNs();
  SetDeadline(connection, connection->exchange->DeadlineNs());
  SendRequest(connection);
}

void HttpLoop::Open(std::unique_ptr<HttpExchange> exchange, size_t address_index) {
  if (target_->addresses().empty()) return Refuse(std::move(exchange), target_->resolve_error());
  const SocketAddress& address = target_->addresses()[address_index];
  const int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Refuse(std::move(exchange), "no socket: " + ErrnoText(errno));
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  HttpConnection* const connection = connections_.emplace_back(std::make_unique<HttpConnection>()).get();
  connection->fd = fd;
  connection->index = connections_.size() - 1;
  connection->address_index = address_index;
  connection->exchange = std::move(exchange);
  epoll_event interest{};
  interest.events = EPOLLOUT;
  interest.data.ptr = connection;
  epoll_ctl(poll_, EPOLL_CTL_ADD, fd, &interest);
  connection->watches_output = true;
  SetDeadline(connection, connection->exchange->DeadlineNs());
  const int result = connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.size);
  if (result == 0) return HandleConnecting(connection, NowNs());
  if (errno != EINPROGRESS) HandleClosed(connection, NowNs(), ErrnoText(errno));
}

// What the socket takes of the output; the rest when it takes more. An error is left to the next read, which
// may still find an answer.
void HttpLoop::SendRequest(HttpConnection* connection) {
  while (connection->sent < connection->output.size()) {
    const ssize_t count = send(connection->fd, connection->output.data() + connection->sent,
                               connection->output.size() - connection->sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EAGAIN) return Watch(connection, EPOLLIN | EPOLLOUT);
    if (count < 0) break;
    connection->sent += static_cast<size_t>(count);
  }
  if (connection->sent == connection->output.size()) {
    connection->output.clear();
    connection->sent = 0;
  }
  Watch(connection, EPOLLIN);
}

void HttpLoop::Report(HttpExchange* exchange) {
  if (exchange->done == nullptr) return;
  const Transport::Done done = std::exchange(exchange->done, nullptr);
  done(std::move(exchange->record));
}

void HttpLoop::Refuse(std::unique_ptr<HttpExchange> exchange, const std::string& why) {
  exchange->reader.Abandon(Outcome::kRefused, why);
  Report(exchange.get());
}

void HttpLoop::ExpireDeadlines() {
  const int64_t now_ns = NowNs();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_ns) {
    HttpConnection* const connection = deadlines_.begin()->second;
    const std::unique_ptr<HttpExchange> exchange = std::move(connection->exchange);
    const bool is_connecting = connection->stage == HttpConnection::Stage::kConnecting ||
                               connection->stage == HttpConnection::Stage::kHandshake;
    Close(connection);
    if (exchange->done == nullptr) continue;
    const std::string place = is_connecting ? "no connection" : "no end of the answer";
    exchange->reader.Abandon(
        Outcome::kTimeout,
        place + " within " + std::to_string(exchange->request.deadline_ns / kNsPerMs) + " ms");
    Report(exchange.get());
  }
}

void HttpLoop::AbandonAll() {
  std::vector<std::unique_ptr<HttpExchange>> exchanges;
  while (!connections_.empty()) {
    HttpConnection* const connection = connections_.back().get();
    if (connection->exchange != nullptr) exchanges.push_back(std::move(connection->exchange));
    Close(connection);
  }
  for (const std::unique_ptr<HttpExchange>& exchange : exchanges) {
    if (exchange->done == nullptr) continue;
    exchange->reader.Abandon(Outcome::kUnfinished, "under way when the run ended");
    Report(exchange.get());
  }
}

// 0: none.
void HttpLoop::SetDeadline(HttpConnection* connection, int64_t deadline_ns) {
  if (connection->deadline_ns != 0) deadlines_.erase({connection->deadline_ns, connection});
  connection->deadline_ns = deadline_ns;
  if (deadline_ns != 0) deadlines_.emplace(deadline_ns, connection);
}

void HttpLoop::Watch(HttpConnection* connection, uint32_t events) {
  const bool watches_output = (events & EPOLLOUT) != 0;
  if (connection->watches_output == watches_output) return;
  connection->watches_output = watches_output;
  epoll_event interest{};
  interest.events = events;
  interest.data.ptr = connection;
  epoll_ctl(poll_, EPOLL_CTL_MOD, connection->fd, &interest);
}

void HttpLoop::Close(HttpConnection* connection) {
  SetDeadline(connection, 0);
  if (connection->stage == HttpConnection::Stage::kIdle) std::erase(idle_, connection);
  connection->stage = HttpConnection::Stage::kClosed;
  close(connection->fd);
  const size_t index = connection->index;
  std::swap(connections_[index], connections_.back());
  connections_[index]->index = index;
  closed_.push_back(std::move(connections_.back()));
  connections_.pop_back();
}

}  // namespace tramontane::load
