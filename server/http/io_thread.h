// The threads and sockets of an HttpServer as the system has them. Nobody but http_server.cc includes this
// page, for it brings Boost.Asio along.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/http/byte_socket.h"
#include "server/http/connection_thread.h"
#include "server/http/spare_files.h"

namespace tramontane {

// Work from other threads comes through one mailbox, so that a hundred streams that are ready at once wake
// the thread once.
class IoThread final : public ConnectionThread {
 public:
  IoThread() : context_(1), timer_(context_), work_(boost::asio::make_work_guard(context_)) {}

  void Start(int64_t sweep_ms);
  boost::asio::io_context& context() { return context_; }

  bool Post(std::function<void()> work) override;
  bool is_current() const override { return thread_id_.load() == std::this_thread::get_id(); }
  int64_t NowNs() const override;

  // From another thread: returns when `work` has run on this one.
  void RunAndWait(const std::function<void()>& work);
  // From another thread: ends the thread, and runs here what was posted too late for it.
  void Join();

 private:
  void RunMailbox();
  void ScheduleSweep();

  boost::asio::io_context context_;
  boost::asio::steady_timer timer_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_{};
  int64_t sweep_ms_ = 0;
  bool stopping_ = false;
  std::vector<std::function<void()>> running_;

  std::mutex mutex_;  // guards what follows
  std::vector<std::function<void()>> mailbox_;
  bool closed_ = false;
};

// A socket that does not block.
class TcpSocket final : public ByteSocket {
 public:
  // `spare_files`: where its file comes from and goes to; null: from the system.
  TcpSocket(boost::asio::ip::tcp::socket socket, std::shared_ptr<SpareFiles> spare_files);

  ~TcpSocket() override { Close(); }

  const std::string& peer() const override { return peer_; }
  int file() { return socket_.native_handle(); }

  Progress Read(std::span<char> room) override;
  Progress Write(std::span<const std::string_view> texts) override;
  void WhenReadable(std::function<void()> call) override;
  void WhenWritable(std::function<void()> call) override;
  bool HasHungUp() override;
  void ShutdownSend() override;
  void Close() override;

 private:
  boost::asio::ip::tcp::socket socket_;
  std::string peer_;
  std::shared_ptr<SpareFiles> spare_files_;
};

}  // namespace tramontane
