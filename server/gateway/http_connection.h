// The connections of an HttpServer and the threads they live on: what http_server.cc is made of. Nobody else
// includes this page, for it brings Boost.Asio along.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "server/gateway/http_parser.h"
#include "server/gateway/http_server.h"

namespace tramontane {

inline constexpr int64_t kLingerMs = 2000;  // for a client to read the last words of its connection

class Connection;

// What all connections share. Any thread.
struct HttpServerState {
  HttpServerState(const HttpServerOptions& options, HttpServer::Handler handler)
      : options(options),
        handler(std::move(handler)),
        handlers(static_cast<size_t>(options.handler_threads)) {}

  const HttpServerOptions options;
  const HttpServer::Handler handler;
  boost::asio::thread_pool handlers;
  std::atomic<bool> closing{false};   // connections end after their answer
  std::atomic<bool> stopping{false};  // at once
  std::atomic<int64_t> open_exchanges{0};
  std::atomic<int64_t> connections{0};
  std::atomic<int64_t> held_body_bytes{0};
};

// A thread and the connections that live on it. Work from other threads comes through one mailbox, so that a
// hundred streams that are ready at once wake it once.
class IoThread {
 public:
  static constexpr size_t kReadBytes = 64 << 10;  // of one read

  IoThread() : context_(1), timer_(context_), work_(boost::asio::make_work_guard(context_)) {}

  void Start(int64_t sweep_ms);

  boost::asio::io_context& context() { return context_; }
  bool is_current() const { return thread_id_.load() == std::this_thread::get_id(); }

  // False, and nothing done, once the thread is gone.
  bool Post(std::function<void()> work);

  // On the thread.
  void Add(std::shared_ptr<Connection> connection) { connections_.insert(std::move(connection)); }
  void Remove(const std::shared_ptr<Connection>& connection) { connections_.erase(connection); }
  std::array<char, kReadBytes>& read_buffer() { return read_buffer_; }

  // From another thread: ends every connection, and returns when that is done.
  void CloseConnections();
  // From another thread: ends the thread, and runs here what was posted too late for it.
  void Join();

 private:
  void RunMailbox();
  void ScheduleSweep();
  void Sweep();  // every connection looks at its clocks

  boost::asio::io_context context_;
  boost::asio::steady_timer timer_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_{};
  int64_t sweep_ms_ = 0;
  bool stopping_ = false;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  std::array<char, kReadBytes> read_buffer_;  // of whichever connection reads
  std::vector<std::function<void()>> running_;

  std::mutex mutex_;  // guards what follows
  std::vector<std::function<void()>> mailbox_;
  bool closed_ = false;
};

// One socket and its state. On its io thread only, but for thread().
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<HttpServerState> shared, std::shared_ptr<IoThread> thread,
             boost::asio::ip::tcp::socket socket)
      : shared_(std::move(shared)),
        thread_(std::move(thread)),
        socket_(std::move(socket)),
        parser_(shared_->options.limits) {
    ++shared_->connections;
  }
  ~Connection() { --shared_->connections; }

  IoThread& thread() const { return *thread_; }

  void Begin();
  void BeginRefused();  // one connection too many
  void Sweep(int64_t now);
  void Close();

  // ---- from the exchange in progress, by its number; of others nothing is done ----
  void Respond(int64_t exchange, HttpResponse response);
  void StartStream(int64_t exchange, HttpResponse head);
  void Write(int64_t exchange, std::string_view bytes);
  void End(int64_t exchange, std::string_view last_bytes);
  void Listen(int64_t exchange, std::shared_ptr<HttpListener> listener);
  // Nobody will end its stream.
  void Abandon(int64_t exchange);
  // Its body holds so many bytes more than were sent.
  void HoldMore(int64_t exchange, int64_t bytes);

 private:
  enum class Phase {
    kIdle,       // between requests
    kReading,    // part of a request is here
    kAnswering,  // an exchange is open
    kLingering,  // the last words are out; what comes is thrown away
    kClosed,
  };

  const HttpLimits& limits() const { return shared_->options.limits; }

  void WaitForInput();
  void OnReadable();
  void OnInput(std::string_view bytes);
  void OnInputEnd();
  void ParseInput(std::string_view bytes);
  bool HoldBody();
  void Dispatch();
  void Refuse(const ApiError& error);
  void BeginAnswer();

  std::string Head(const HttpResponse& response, const std::string& length_field) const;
  void Append(std::string_view chunk);
  void Flush();
  void OnFlushed();
  void EndAnswer();
  void OnReadAhead();
  void Linger();

  const std::shared_ptr<HttpServerState> shared_;
  const std::shared_ptr<IoThread> thread_;
  boost::asio::ip::tcp::socket socket_;
  Phase phase_ = Phase::kIdle;
  int64_t since_ms_ = 0;  // the phase began, or, answering: the last write began or made progress

  // Reading.
  HttpRequestParser parser_;
  std::string input_;  // read, and not yet taken by the parser
  bool waiting_for_input_ = false;
  bool input_ended_ = false;  // the client has shut down its side
  bool continue_sent_ = false;
  int64_t held_body_bytes_ = 0;  // counted in HttpServerState

  // Answering.
  int64_t exchange_ = 0;  // number of the exchange in progress, else of the last one
  std::string request_id_;
  std::shared_ptr<HttpListener> listener_;
  bool is_head_ = false;     // HEAD: no body is sent
  bool keep_alive_ = false;  // after this answer
  bool is_chunked_ = false;
  bool streaming_ = false;
  bool answered_ = false;  // all of the answer is in output_
  std::string output_;     // of which [written_, size) has to be written
  size_t written_ = 0;
  bool blocked_ = false;  // waiting for room in the socket
};

}  // namespace tramontane
