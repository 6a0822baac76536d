// Connections without sockets, threads or time: a test is their clients, their handler threads and their
// clock. One thread. Always: nothing happens but in Run and Advance, and a stage that ends checks that
// nothing is held.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/connection.h"

namespace tramontane {

// The other side of a connection. It takes nothing that it has not made room for.
class StagePeer {
 public:
  std::string address = "127.0.0.1";  // before its socket is used

  void Send(std::string_view bytes) { sent_.append(bytes); }
  void ShutdownSend() { has_ended_ = true; }
  void Reset() { is_broken_ = true; }
  void MakeRoom(size_t bytes) { room_ += bytes; }

  const std::string& received() const { return received_; }
  size_t unread_bytes() const { return sent_.size(); }  // sent, and not read by the server
  int64_t allocated_bytes() const { return static_cast<int64_t>(sent_.capacity() + received_.capacity()); }
  bool server_has_closed() const { return closed_; }
  bool server_has_ended() const { return closed_ || sender_shut_; }

 private:
  friend class StageSocket;
  friend class ConnectionStage;

  bool RunOne();  // one of the calls that wait, if it can do something

  std::string sent_;
  bool has_ended_ = false;
  bool is_broken_ = false;
  size_t room_ = 0;
  std::string received_;
  bool sender_shut_ = false;
  bool closed_ = false;
  std::function<void()> when_readable_;
  std::function<void()> when_writable_;
};

class ConnectionStage {
 public:
  // The handler runs as the server's does: on the connections' thread.
  ConnectionStage(const HttpLimits& limits, HttpServer::Handler handler,
                  ByteBudget* unread_answers = nullptr);
  ~ConnectionStage();

  // A client with room for everything, or for nothing yet, and from somewhere else.
  StagePeer& Connect(size_t room = SIZE_MAX / 2, const std::string& address = "127.0.0.1");
  StagePeer& ConnectFrom(const std::string& address) { return Connect(SIZE_MAX / 2, address); }
  StagePeer& ConnectOverLimit();

  // Until nothing moves any more. Without handler threads what they have been given waits.
  void Run();
  bool handlers_run = true;
  bool long_work_runs = true;
  // Time passes, in steps as short as a server's.
  void Advance(int64_t ms);
  // As HttpServer::Stop does.
  void CloseAll();

  HttpServerState& state() { return *state_; }
  ConnectionThread& thread();
  int64_t open_connections() const { return state_->connections.all(); }
  int64_t held_bytes() const { return state_->held_bytes.bytes(); }
  size_t peers() const { return peers_.size(); }
  StagePeer& peer(size_t index) { return *peers_[index]; }

 private:
  class Thread;

  StagePeer& Connect(size_t room, const std::string& address, bool is_over_limit);
  bool RunHandler();

  WorkQueue handlers_{{.max_queued = 1 << 20, .keeps_room = true}};  // what waits for a handler thread
  std::shared_ptr<Thread> thread_;
  std::shared_ptr<HttpServerState> state_;
  std::vector<std::shared_ptr<StagePeer>> peers_;
};

}  // namespace tramontane
