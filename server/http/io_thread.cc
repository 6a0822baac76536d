#include "server/http/io_thread.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <latch>

#include "server/base/peer_address.h"

namespace tramontane {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

ByteSocket::State StateOf(const error_code& fault) {
  if (!fault) return ByteSocket::State::kOpen;
  if (fault == asio::error::would_block) return ByteSocket::State::kLater;
  return fault == asio::error::eof ? ByteSocket::State::kEnded : ByteSocket::State::kBroken;
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

int64_t IoThread::NowNs() const {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
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

void IoThread::RunAndWait(const std::function<void()>& work) {
  std::latch done(1);
  const bool runs = Post([&] {
    work();
    done.count_down();
  });
  if (runs) done.wait();
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

// ---- TcpSocket -------------------------------------------------------------------------------------

TcpSocket::TcpSocket(boost::asio::ip::tcp::socket socket, std::shared_ptr<SpareFiles> spare_files)
    : socket_(std::move(socket)), spare_files_(std::move(spare_files)) {
  error_code fault;  // it has gone already
  const tcp::endpoint endpoint = socket_.remote_endpoint(fault);
  if (!fault) peer_ = PlainAddress(endpoint.address().to_string());
}

ByteSocket::Progress TcpSocket::Read(std::span<char> room) {
  error_code fault;
  const size_t bytes = socket_.read_some(asio::buffer(room.data(), room.size()), fault);
  return {bytes, StateOf(fault)};
}

ByteSocket::Progress TcpSocket::Write(std::span<const std::string_view> texts) {
  std::array<asio::const_buffer, kMostTexts> buffers;
  std::transform(texts.begin(), texts.end(), buffers.begin(),
                 [](std::string_view text) { return asio::buffer(text.data(), text.size()); });
  error_code fault;
  const size_t written = socket_.write_some(std::span(buffers).first(texts.size()), fault);
  return {written, StateOf(fault)};
}

void TcpSocket::WhenReadable(std::function<void()> call) {
  socket_.async_wait(tcp::socket::wait_read, [call = std::move(call)](error_code) { call(); });
}

void TcpSocket::WhenWritable(std::function<void()> call) {
  socket_.async_wait(tcp::socket::wait_write, [call = std::move(call)](error_code) { call(); });
}

bool TcpSocket::HasHungUp() {
  pollfd state{};
  state.fd = socket_.native_handle();
  state.events = POLLRDHUP;
  return poll(&state, 1, 0) > 0;
}

void TcpSocket::ShutdownSend() {
  error_code ignored;
  // NOLINTNEXTLINE(bugprone-unused-return-value): `ignored` says the same
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

void TcpSocket::Close() {
  error_code ignored;
  if (!socket_.is_open()) return;
  if (spare_files_ != nullptr) {
    const int file = socket_.release(ignored);
    if (!ignored) return spare_files_->Take(file);
  }
  // NOLINTNEXTLINE(bugprone-unused-return-value): `ignored` says the same
  socket_.close(ignored);
}

}  // namespace tramontane
