#include "server/grpc/acceptor.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

namespace tramontane {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kSweep = 100ms;
constexpr std::chrono::milliseconds kRetryAccept = 50ms;  // where the system has no more files

}  // namespace

GrpcAcceptor::GrpcAcceptor(std::unique_ptr<GrpcListener> listener, std::unique_ptr<Handover> handover,
                           GrpcCalls& calls)
    : listener_(std::move(listener)),
      handover_(std::move(handover)),
      calls_(calls),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { Loop(); }) {}

GrpcAcceptor::~GrpcAcceptor() {
  const uint64_t one = 1;
  while (write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
}

void GrpcAcceptor::Loop() {
  std::vector<pollfd> files = {{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
  for (const auto& socket : listener_->sockets()) {
    files.push_back({.fd = socket->get(), .events = POLLIN, .revents = 0});
  }
  auto next_sweep = std::chrono::steady_clock::now() + kSweep;
  while (true) {
    const bool anybody = calls_.connections.size() > 0;
    poll(files.data(), files.size(), anybody ? static_cast<int>(kSweep.count()) : -1);
    if (files[0].revents != 0) return;
    for (size_t i = 1; i < files.size(); ++i) {
      if (files[i].revents != 0 && !AcceptAll(files[i].fd)) std::this_thread::sleep_for(kRetryAccept);
    }
    const auto now = std::chrono::steady_clock::now();
    if (now < next_sweep) continue;
    next_sweep = now + kSweep;
    calls_.connections.Sweep();
    calls_.open.Sweep();
  }
}

bool GrpcAcceptor::AcceptAll(int listening) {
  while (true) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    const int fd =
        accept4(listening, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
    if (!calls_.connections.Add(fd, peer)) {
      close(fd);
      continue;
    }
    Handover::NewConnectionParameters connection;
    connection.listener_fd = listening;
    connection.fd = fd;
    handover_->HandleNewConnection(&connection);
  }
}

}  // namespace tramontane
