#include "server/http/tls_handshakes.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "kernels/core/check.h"
#include "server/base/peer_address.h"

namespace tramontane {
namespace {

constexpr uint64_t kWake = 0;  // no entry's number

void Watch(int poll, int file, uint32_t events, uint64_t number, bool is_new) {
  epoll_event event{};
  event.events = events | EPOLLONESHOT;
  event.data.u64 = number;
  epoll_ctl(poll, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, file, &event);
}

// On its own thread, which has the file.
void CloseOn(const std::shared_ptr<ConnectionThread>& thread, std::shared_ptr<TlsSocket> socket) {
  thread->Post([socket = std::move(socket)] { socket->Close(); });
}

}  // namespace

TlsHandshakes::TlsHandshakes(TlsHandshakeOptions options)
    : options_(std::move(options)),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TM_CHECK(poll_.get() >= 0 && wake_.get() >= 0, "no file for TLS handshakes");
  Watch(poll_.get(), wake_.get(), EPOLLIN, kWake, /*is_new=*/true);
  thread_ = std::thread([this] { Loop(); });
}

void TlsHandshakes::Wake() {
  const uint64_t one = 1;
  while (write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void TlsHandshakes::Stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  Wake();
  thread_.join();
  const std::lock_guard lock(mutex_);
  while (!entries_.empty()) {
    Entry entry = Remove(entries_.begin());
    CloseOn(entry.thread, std::move(entry.socket));
  }
}

void TlsHandshakes::Begin(int file, std::unique_ptr<ByteSocket> socket,
                          std::shared_ptr<ConnectionThread> thread, Done done) {
  Entry entry = {.file = file,
                 .share = AddressShare(socket->peer()),
                 .end = Clock::now() + options_.timeout,
                 .thread = thread,
                 .done = std::move(done),
                 .socket = std::make_unique<TlsSocket>(options_.context().get(), std::move(socket), thread)};
  const std::lock_guard lock(mutex_);
  if (std::ssize(entries_) >= options_.max_handshakes) RemoveOldest();
  if (entries_.empty()) Wake();  // for its end
  ++of_share_[entry.share];
  entries_.emplace(++last_number_, std::move(entry));
  Watch(poll_.get(), file, EPOLLIN, last_number_, /*is_new=*/true);
}

void TlsHandshakes::EndOldest() {
  const std::lock_guard lock(mutex_);
  RemoveOldest();
}

void TlsHandshakes::RemoveOldest() {
  const auto most = std::max_element(of_share_.begin(), of_share_.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == of_share_.end()) return;
  const auto oldest = std::find_if(entries_.begin(), entries_.end(),
                                   [&](const auto& entry) { return entry.second.share == most->first; });
  Entry entry = Remove(oldest);
  if (entry.socket != nullptr) CloseOn(entry.thread, std::move(entry.socket));
}

TlsHandshakes::Entry TlsHandshakes::Remove(Entries::iterator which) {
  Entry entry = std::move(which->second);
  entries_.erase(which);
  const auto share = of_share_.find(entry.share);
  if (--share->second == 0) of_share_.erase(share);
  epoll_ctl(poll_.get(), EPOLL_CTL_DEL, entry.file, nullptr);
  return entry;
}

void TlsHandshakes::Loop() {
  while (const std::optional<int> wait_ms = TimeToWait()) {
    std::array<epoll_event, 64> events;
    const int count = epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), *wait_ms);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 != kWake) {
        GoOn(events[i].data.u64);
        continue;
      }
      uint64_t times = 0;
      while (read(wake_.get(), &times, sizeof times) < 0 && errno == EINTR) {
      }
      Watch(poll_.get(), wake_.get(), EPOLLIN, kWake, /*is_new=*/false);
    }
    EndLate();
  }
}

void TlsHandshakes::GoOn(uint64_t number) {
  std::unique_ptr<TlsSocket> socket;
  std::shared_ptr<ConnectionThread> thread;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(number);
    if (found == entries_.end()) return;
    socket = std::move(found->second.socket);
    thread = found->second.thread;
  }
  const TlsSocket::Handshaking state = socket->Handshake();
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(number);
  if (found == entries_.end()) return CloseOn(thread, std::move(socket));  // its place was needed
  const bool waits = state == TlsSocket::Handshaking::kReads || state == TlsSocket::Handshaking::kWrites;
  if (waits) {
    found->second.socket = std::move(socket);
    const bool reads = state == TlsSocket::Handshaking::kReads;
    return Watch(poll_.get(), found->second.file, reads ? EPOLLIN : EPOLLOUT, number, /*is_new=*/false);
  }
  const Entry entry = Remove(found);
  lock.unlock();
  if (state == TlsSocket::Handshaking::kFailed) return CloseOn(thread, std::move(socket));
  entry.done(std::move(socket));
}

void TlsHandshakes::EndLate() {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  while (!entries_.empty() && entries_.begin()->second.end <= now) {
    Entry entry = Remove(entries_.begin());
    CloseOn(entry.thread, std::move(entry.socket));
  }
}

std::optional<int> TlsHandshakes::TimeToWait() {
  const std::lock_guard lock(mutex_);
  if (is_stopping_) return std::nullopt;
  if (entries_.empty()) return -1;
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(entries_.begin()->second.end - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count() + 1, 0));
}

}  // namespace tramontane
