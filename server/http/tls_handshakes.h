// TlsHandshakes: the beginnings of TLS connections, on a thread of their own: what a handshake computes, and
// clients that let it wait, keep no io thread.
//
// Any thread. Always: at most `max_handshakes` at once, where one more ends the oldest of the address that
// has most; each within `timeout`.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "server/base/file_descriptor.h"
#include "server/http/byte_socket.h"
#include "server/http/connection_thread.h"
#include "server/http/tls_socket.h"

struct ssl_ctx_st;

namespace tramontane {

struct TlsHandshakeOptions {
  // What connections that begin now are shown.
  std::function<std::shared_ptr<ssl_ctx_st>()> context;
  int32_t max_handshakes = 512;
  std::chrono::milliseconds timeout{10'000};
};

class TlsHandshakes {
 public:
  using Done = std::function<void(std::unique_ptr<ByteSocket>)>;

  explicit TlsHandshakes(TlsHandshakeOptions options);
  ~TlsHandshakes() { Stop(); }

  // `file`: the socket's. `done`: on this object's thread, once the client may speak; never where it fails.
  void Begin(int file, std::unique_ptr<ByteSocket> socket, std::shared_ptr<ConnectionThread> thread,
             Done done);
  // Ends the one that was begun first of the address that has most: its file is needed.
  void EndOldest();
  // Ends those in progress. Nothing begins afterwards. One thread at a time.
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    int file = -1;
    std::string share;  // AddressShare of the peer
    Clock::time_point end;
    std::shared_ptr<ConnectionThread> thread;
    Done done;
    std::unique_ptr<TlsSocket> socket;  // null while it goes on
  };
  using Entries = std::map<uint64_t, Entry>;  // in the order in which they began

  void Loop();
  void Wake();
  void GoOn(uint64_t number);
  void EndLate();
  // For epoll_wait; nothing where the loop is to end.
  std::optional<int> TimeToWait();
  // These hold mutex_.
  void RemoveOldest();
  Entry Remove(Entries::iterator which);

  const TlsHandshakeOptions options_;
  const FileDescriptor poll_;
  const FileDescriptor wake_;  // an eventfd
  std::mutex mutex_;           // guards what follows
  Entries entries_;
  std::unordered_map<std::string, int32_t> of_share_;
  uint64_t last_number_ = 0;
  bool is_stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tramontane
