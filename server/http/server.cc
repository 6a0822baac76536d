#include "server/http/server.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/base/host_port.h"
#include "server/http/connection.h"
#include "server/http/io_thread.h"

namespace tramontane {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kAnswersPoll{2};
constexpr int32_t kMaxRefused = 256;  // connections over the limit that are told so
// Of the open files that the system allows: for the rest of the process, and for new connections that are
// told that there are too many.
constexpr int64_t kKeptFiles = 16;
constexpr std::chrono::milliseconds kRetryAccept{50};  // where the system has no more open files

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

// At once where this is the thread.
void RunOn(ConnectionThread& thread, std::function<void()> work) {
  if (thread.is_current()) return work();
  thread.Post(std::move(work));
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
      : handlers(static_cast<size_t>(options.handler_threads)),
        shared(std::make_shared<HttpServerState>(
            options, std::move(handler),
            [this](std::function<void()> work) { asio::post(handlers, std::move(work)); })) {
    for (int32_t i = 0; i < options.io_threads; ++i) threads.push_back(std::make_shared<IoThread>());
    acceptor.emplace(threads.front()->context());
    retry.emplace(threads.front()->context());
  }

  Status Bind();
  void Accept();
  void OnAccepted(std::shared_ptr<IoThread> thread, tcp::socket socket);
  // Whether a new connection is one more than `most`, or than the system's files allow but for `kept`.
  bool IsOneTooMany(int64_t most, int free_file, int64_t kept) const;
  void MakeRoom();

  asio::thread_pool handlers;
  const std::shared_ptr<HttpServerState> shared;
  std::vector<std::shared_ptr<IoThread>> threads;
  // On the first of the threads.
  std::optional<tcp::acceptor> acceptor;
  std::optional<asio::steady_timer> retry;
  size_t next_thread = 0;
  int64_t max_files = 0;
  std::string address;
};

Status HttpServer::Impl::Bind() {
  const std::string& wanted = shared->options.address;
  auto parsed = ParseHostPort(wanted);
  if (!parsed.ok()) return InvalidArgument("http_address " + parsed.status().message());
  HostPort where = std::move(*parsed);
  error_code fault;
  tcp::resolver resolver(threads.front()->context());
  const auto found = resolver.resolve(where.host, std::to_string(where.port), tcp::resolver::passive, fault);
  if (fault) return Unavailable("http_address: cannot listen on " + wanted + ": " + fault.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor->open(endpoint.protocol(), fault);
  if (!fault) acceptor->set_option(tcp::acceptor::reuse_address(true), fault);
  if (!fault) acceptor->bind(endpoint, fault);
  if (!fault) acceptor->listen(asio::socket_base::max_listen_connections, fault);
  if (fault) return Unavailable("http_address: cannot listen on " + wanted + ": " + fault.message());
  where.port = acceptor->local_endpoint().port();
  address = ToString(where);
  shared->on_loopback = IsLoopback(acceptor->local_endpoint().address().to_string());
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
    // No file descriptors, most likely.
    MakeRoom();
    retry->expires_after(kRetryAccept);
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
  const int64_t most = shared->options.limits.max_connections;
  const int free_file = LowestFreeFile(socket.native_handle());
  const bool is_full = IsOneTooMany(most, free_file, kKeptFiles);
  const bool is_over_full = IsOneTooMany(most + kMaxRefused, free_file, kKeptFiles / 2);
  const auto connection =
      std::make_shared<Connection>(shared, thread, std::make_unique<TcpSocket>(std::move(socket)));
  RunOn(*thread, [connection, is_full, is_over_full] {
    ConnectionThread& home = connection->thread();
    if (!is_full || home.CloseFirst(ConnectionThread::Line::kIdle)) return connection->Begin();
    if (!is_over_full || home.CloseFirst(ConnectionThread::Line::kOverLimit)) connection->BeginOverLimit();
  });
}

bool HttpServer::Impl::IsOneTooMany(int64_t most, int free_file, int64_t kept) const {
  return shared->connections >= most || free_file >= max_files - kept;
}

void HttpServer::Impl::MakeRoom() {
  for (const auto& thread : threads) {
    RunOn(*thread, [thread] { thread->CloseFirst(ConnectionThread::Line::kIdle); });
  }
}

StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options, Handler handler) {
  auto impl = std::make_unique<Impl>(options, std::move(handler));
  impl->max_files = RaiseOpenFileLimit(options.limits.max_connections);
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

bool HttpServer::WaitForAnswers(int64_t timeout_ns) const {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::nanoseconds(timeout_ns);
  while (open_exchanges() > 0) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kAnswersPoll);
  }
  return true;
}

void HttpServer::Stop() {
  impl_->threads.front()->Post([impl = impl_.get()] {
    error_code ignored;
    impl->acceptor->close(ignored);
    impl->retry->cancel();
  });
  impl_->shared->closing = true;
  for (const auto& thread : impl_->threads) thread->RunAndWait([&thread] { thread->StopAll(); });
  WaitForAnswers(impl_->shared->options.limits.last_words_ms * 1'000'000);
  impl_->shared->stopping = true;
  for (const auto& thread : impl_->threads) thread->RunAndWait([&thread] { thread->CloseAll(); });
  // Handlers that still run may begin to listen: the threads tell them of the hang-up.
  impl_->handlers.join();
  for (const auto& thread : impl_->threads) thread->Join();
}

}  // namespace tramontane
