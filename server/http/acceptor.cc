#include "server/http/acceptor.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <limits>
#include <utility>

#include "server/base/host_port.h"

namespace tramontane {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Line = ConnectionThread::Line;

constexpr int32_t kMaxRefused = 256;  // connections over the limit that are told so
// Of the open files that the system allows: for the rest of the process, and for new connections that are
// told that there are too many.
constexpr int64_t kKeptFiles = 16;
constexpr int kAcceptedInARow = 16;
constexpr int kSpareFiles = 16;  // for connections, where the system has no more open files
constexpr std::chrono::milliseconds kRetryAccept{50};  // where there are no spare ones either

// Raises the limit of open files to what the connections need, as far as the system's hard limit allows it,
// and says what it is now.
int64_t RaiseOpenFileLimit(int64_t connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::numeric_limits<int64_t>::max();
  const rlim_t wanted =
      std::min<rlim_t>(limit.rlim_max, static_cast<rlim_t>(connections + kMaxRefused + 256));
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int32_t>::max()));
}

// The system gives out the lowest number that is free: all below it are open.
int LowestFreeFile(int any_file) {
  const int free_file = fcntl(any_file, F_DUPFD_CLOEXEC, 0);
  if (free_file < 0) return std::numeric_limits<int>::max();  // there is none
  close(free_file);
  return free_file;
}

// Null: no TLS.
std::unique_ptr<TlsHandshakes> HandshakesOf(const HttpServerOptions& options) {
  if (options.tls_context == nullptr) return nullptr;
  const int64_t most_ms = std::min(options.limits.handshake_timeout_ms, options.limits.read_timeout_ms);
  return std::make_unique<TlsHandshakes>(TlsHandshakeOptions{
      .context = options.tls_context,
      .max_handshakes = options.limits.max_handshakes,
      .timeout = std::chrono::milliseconds(most_ms),
  });
}

int64_t MostSockets(const HttpServerOptions& options) {
  const int64_t handshakes = options.tls_context == nullptr ? 0 : options.limits.max_handshakes;
  return options.limits.max_connections + handshakes;
}

// At once where this is the thread.
void RunOn(ConnectionThread& thread, std::function<void()> work) {
  if (thread.is_current()) return work();
  thread.Post(std::move(work));
}

// A search for room, from thread to thread.
struct RoomSearch : std::enable_shared_from_this<RoomSearch> {
  struct Question {
    std::shared_ptr<IoThread> thread;
    Line line;
    std::string client;
  };
  std::deque<Question> left;  // the best first
  std::function<void(bool found)> then;

  void Go() {
    if (left.empty()) return then(false);
    const Question question = std::move(left.front());
    left.pop_front();
    RunOn(*question.thread, [self = shared_from_this(), question] {
      if (question.thread->CloseFirst(question.line, question.client)) return self->then(true);
      self->Go();
    });
  }
};

}  // namespace

Acceptor::Acceptor(std::shared_ptr<HttpServerState> shared,
                   const std::vector<std::shared_ptr<IoThread>>& threads)
    : shared_(std::move(shared)),
      threads_(threads),
      spare_files_(std::make_shared<SpareFiles>(kSpareFiles)),
      acceptor_(threads.front()->context()),
      retry_(threads.front()->context()),
      handshakes_(HandshakesOf(shared_->options)),
      max_files_(RaiseOpenFileLimit(MostSockets(shared_->options))) {}

Status Acceptor::Listen(const std::string& wanted) {
  auto parsed = ParseHostPort(wanted);
  if (!parsed.ok()) return InvalidArgument("http_address " + parsed.status().message());
  HostPort where = std::move(*parsed);
  error_code fault;
  tcp::resolver resolver(threads_.front()->context());
  const auto found = resolver.resolve(where.host, std::to_string(where.port), tcp::resolver::passive, fault);
  if (fault) return Unavailable("http_address: cannot listen on " + wanted + ": " + fault.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), fault);
  if (!fault) acceptor_.set_option(tcp::acceptor::reuse_address(true), fault);
  if (!fault) acceptor_.bind(endpoint, fault);
  if (!fault) acceptor_.listen(asio::socket_base::max_listen_connections, fault);
  if (!fault) acceptor_.non_blocking(true, fault);
  if (fault) return Unavailable("http_address: cannot listen on " + wanted + ": " + fault.message());
  where.port = acceptor_.local_endpoint().port();
  address_ = ToString(where);
  shared_->on_loopback = IsLoopback(acceptor_.local_endpoint().address().to_string());
  return Status::Ok();
}

// The system looks for a file before it looks whether somebody is there: so this waits for somebody first,
// and a spare file is given up for nobody else.
void Acceptor::Accept() {
  acceptor_.async_wait(tcp::acceptor::wait_read, [this](error_code fault) {
    if (!acceptor_.is_open()) return;
    for (int i = 0; i < kAcceptedInARow && !fault; ++i) fault = AcceptOne();
    if (!fault || fault == asio::error::would_block || fault == asio::error::connection_aborted) {
      return Accept();
    }
    retry_.expires_after(kRetryAccept);
    retry_.async_wait([this](error_code stopped) {
      if (!stopped && acceptor_.is_open()) Accept();
    });
    // The next try finds the file of an idle connection, or a spare one.
    MakeRoom({{Line::kIdle}, {Line::kOverLimit}}, [this](bool found) {
      if (!found && handshakes_ != nullptr) handshakes_->EndOldest();
    });
  });
}

error_code Acceptor::AcceptOne() {
  namespace errc = boost::system::errc;
  const auto& thread = threads_[next_thread_ % threads_.size()];
  tcp::socket socket(thread->context());
  error_code fault;
  acceptor_.accept(socket, fault);
  const bool no_file = fault == errc::too_many_files_open || fault == errc::too_many_files_open_in_system;
  const bool has_spare_file = no_file && spare_files_->GiveOne();
  if (has_spare_file) acceptor_.accept(socket, fault);
  if (fault || !has_spare_file) spare_files_->Refill();
  if (fault) return fault;
  ++next_thread_;
  OnAccepted(thread, std::move(socket), has_spare_file);
  return has_spare_file ? error_code(asio::error::would_block) : error_code();  // maybe nobody else is there
}

void Acceptor::OnAccepted(const std::shared_ptr<IoThread>& thread, tcp::socket socket, bool has_spare_file) {
  error_code fault;
  socket.non_blocking(true, fault);
  if (!fault) socket.set_option(tcp::no_delay(true), fault);
  if (fault) return;
  auto client = std::make_unique<TcpSocket>(std::move(socket), has_spare_file ? spare_files_ : nullptr);
  if (handshakes_ != nullptr) return BeginTls(thread, std::move(client), has_spare_file);
  const Fullness fullness = has_spare_file ? Fullness::kFull : FullnessWith(client->file());
  Admit(thread, std::move(client), fullness);
}

// It is no connection of the limits before it has shaken hands; but its file is one.
void Acceptor::BeginTls(const std::shared_ptr<IoThread>& thread, std::unique_ptr<TcpSocket> socket,
                        bool has_spare_file) {
  const int file = socket->file();
  if (!has_spare_file && FullnessWith(file) == Fullness::kOverFull) handshakes_->EndOldest();
  const auto on_done = [this, thread, file, has_spare_file](std::unique_ptr<ByteSocket> client) {
    const auto given = std::make_shared<std::unique_ptr<ByteSocket>>(std::move(client));
    threads_.front()->Post([this, thread, file, has_spare_file, given] {
      if (!acceptor_.is_open()) return;
      Admit(thread, std::move(*given), has_spare_file ? Fullness::kFull : FullnessWith(file));
    });
  };
  handshakes_->Begin(file, std::move(socket), thread, on_done);
}

void Acceptor::Admit(const std::shared_ptr<IoThread>& thread, std::unique_ptr<ByteSocket> socket,
                     Fullness fullness) {
  const auto connection = std::make_shared<Connection>(shared_, thread, std::move(socket));
  const auto begin = [thread, connection] { RunOn(*thread, [connection] { connection->Begin(); }); };
  const auto begin_over_limit = [thread, connection] {
    RunOn(*thread, [connection] { connection->BeginOverLimit(); });
  };
  if (fullness == Fullness::kRoom) return begin();
  MakeRoom(CandidatesFor(connection->client()), [=, this](bool found) {
    if (found) return begin();
    if (fullness == Fullness::kFull) return begin_over_limit();
    MakeRoom({{Line::kOverLimit}}, [=](bool found_other) {
      if (found_other) begin_over_limit();
    });
  });
}

Acceptor::Fullness Acceptor::FullnessWith(int any_file) const {
  const int64_t most = shared_->options.limits.max_connections;
  const int free_file = LowestFreeFile(any_file);
  const auto is_one_too_many = [&](int64_t connections, int64_t kept_files) {
    return shared_->connections.all() >= connections || free_file >= max_files_ - kept_files;
  };
  if (!is_one_too_many(most, kKeptFiles)) return Fullness::kRoom;
  return is_one_too_many(most + kMaxRefused, kKeptFiles / 2) ? Fullness::kOverFull : Fullness::kFull;
}

// For a new connection of `client`.
std::vector<Acceptor::Candidates> Acceptor::CandidatesFor(const std::string& client) const {
  const std::string greedy = shared_->connections.greedy();
  if (greedy.empty()) return {{Line::kIdle}};
  std::vector<Candidates> candidates = {{Line::kIdle, greedy}, {Line::kIdle}};
  if (greedy != client) candidates.push_back({Line::kReading, greedy});
  return candidates;
}

void Acceptor::MakeRoom(const std::vector<Candidates>& candidates,
                        std::function<void(bool found)> then) const {
  auto search = std::make_shared<RoomSearch>();
  search->then = std::move(then);
  for (const auto& [line, client] : candidates) {
    auto threads = threads_;
    std::sort(threads.begin(), threads.end(),
              [line](const auto& a, const auto& b) { return a->FirstSinceNs(line) < b->FirstSinceNs(line); });
    for (auto& thread : threads) search->left.push_back({std::move(thread), line, client});
  }
  search->Go();
}

void Acceptor::Close() {
  error_code ignored;
  acceptor_.close(ignored);
  retry_.cancel();
  if (handshakes_ != nullptr) handshakes_->Stop();
}

}  // namespace tramontane
