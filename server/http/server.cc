#include "server/http/server.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/base/worker_pool.h"
#include "server/http/acceptor.h"
#include "server/http/connection.h"
#include "server/http/io_thread.h"

namespace tramontane {
namespace {

constexpr std::chrono::milliseconds kAnswersPoll{2};

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
      : handlers({.threads = options.handler_threads,
                  .max_queued = options.limits.max_connections,
                  .by_time = true,
                  .keeps_room = true}),
        shared(std::make_shared<HttpServerState>(options, std::move(handler), [this](WorkPiece piece) {
          return handlers.TrySubmit(std::move(piece));
        })) {
    for (int32_t i = 0; i < options.io_threads; ++i) threads.push_back(std::make_shared<IoThread>());
    acceptor.emplace(shared, threads);
  }

  WorkerPool handlers;
  const std::shared_ptr<HttpServerState> shared;
  std::vector<std::shared_ptr<IoThread>> threads;
  std::optional<Acceptor> acceptor;
};

StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options, Handler handler) {
  auto impl = std::make_unique<Impl>(options, std::move(handler));
  TM_RETURN_IF_ERROR(impl->acceptor->Listen(options.address));
  impl->acceptor->Accept();
  for (const auto& thread : impl->threads) thread->Start(SweepMs(options.limits));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() { Stop(); }

const std::string& HttpServer::address() const { return impl_->acceptor->address(); }
int64_t HttpServer::open_exchanges() const { return impl_->shared->open_exchanges; }
int64_t HttpServer::connections() const { return impl_->shared->connections.all(); }
int64_t HttpServer::held_body_bytes() const { return impl_->shared->held_bytes.bytes(); }
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
  impl_->threads.front()->Post([impl = impl_.get()] { impl->acceptor->Close(); });
  impl_->shared->closing = true;
  for (const auto& thread : impl_->threads) thread->RunAndWait([&thread] { thread->StopAll(); });
  WaitForAnswers(impl_->shared->options.limits.last_words_ms * 1'000'000);
  impl_->shared->stopping = true;
  for (const auto& thread : impl_->threads) thread->RunAndWait([&thread] { thread->CloseAll(); });
  // Handlers that still run may begin to listen: the threads tell them of the hang-up.
  impl_->handlers.Join();
  for (const auto& thread : impl_->threads) thread->Join();
}

}  // namespace tramontane
