// An HTTP server that answers by script, in this process, on a thread of its own, on a free port of the
// loopback: what the load tool is checked against. It logs when it really wrote.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/core/status.h"

namespace tramontane::load {

// A request as the server has it, whole.
struct ScriptedRequest {
  std::string method;
  std::string path;
  std::string head;  // lines with CRLF
  std::string body;
  std::string request_id;  // by its header, else CONNECTION/REQUEST, both counted from 1
  int64_t received_ns = 0;
  int32_t on_connection = 0;  // 1: its connection's first
};

enum class ScriptEnd {
  kKeep,   // the connection waits for another request
  kClose,  // FIN
  kReset,  // RST
  kHold,   // nothing more, until the client closes
};

// What the server does with a request. Times count from when it had the request whole.
struct Script {
  struct Write {
    int64_t after_ns = 0;
    std::string bytes;
    int32_t content_events = 0;  // whole in it
  };
  std::vector<Write> writes;  // ascending
  ScriptEnd end = ScriptEnd::kKeep;
  int64_t end_after_ns = 0;  // no earlier than the last write
};

// What the server did with a request.
struct ScriptLog {
  struct Write {
    int64_t due_ns = 0;    // CLOCK_MONOTONIC, as all here
    int64_t wrote_ns = 0;  // just before its send
    int32_t content_events = 0;
  };
  int64_t received_ns = 0;
  std::vector<Write> writes;
};

class ScriptedTarget {
 public:
  using Choose = std::function<Script(const ScriptedRequest&)>;  // on the server's thread

  static StatusOr<std::unique_ptr<ScriptedTarget>> Start(Choose choose);
  ~ScriptedTarget();
  ScriptedTarget(const ScriptedTarget&) = delete;
  ScriptedTarget& operator=(const ScriptedTarget&) = delete;

  // "http://127.0.0.1:43210"
  std::string url() const;

  // By request id, of all requests so far. Any thread.
  std::map<std::string, ScriptLog> Logs() const;
  int64_t accepted() const;  // connections so far

 private:
  struct Connection;
  struct Timer {
    int64_t at_ns = 0;
    int64_t serial = 0;  // of the connection
    bool operator>(const Timer& other) const { return at_ns > other.at_ns; }
  };

  ScriptedTarget(Choose choose, int listener);

  void Run();
  void SetTimer();
  void Accept();
  void Read(Connection* connection);
  bool TakeRequest(Connection* connection);
  void Begin(Connection* connection);
  void Proceed(Connection* connection, int64_t now_ns);
  void WriteOut(Connection* connection, std::string_view bytes);
  void End(Connection* connection);

  const Choose choose_;
  const int listener_;
  const int poll_;
  const int timer_;
  const int wake_;

  // The server's thread only.
  std::map<int64_t, std::unique_ptr<Connection>> connections_;  // by serial; as many as clients open
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  int64_t next_serial_ = 1;

  mutable std::mutex mutex_;
  // Under mutex_.
  std::map<std::string, ScriptLog> logs_;  // a test's requests, which are few
  int64_t accepted_ = 0;
  bool ends_ = false;

  std::thread thread_;
};

}  // namespace tramontane::load
