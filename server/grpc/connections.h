// GrpcConnections: who is connected to the gRPC door. gRPC has the sockets and tells nobody when one is
// closed or what it brings; the system does, asked by the socket's number.
//
// Any thread. A connection counts until its file is closed.
// Always: at most `max_connections`; where they are all taken, an address that has more than half of them
// makes room for others, and a connection without a call for anybody.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace tramontane {

struct GrpcConnectionLimits {
  int32_t max_connections = 1024;          // 0: as many as come
  int64_t max_arriving_bytes = 256 << 20;  // of all connections: what came and no call has shown for
};

class GrpcConnection {
 public:
  // Of a call, in this order. Any thread.
  void CallBegan() { ++calls_, ++reading_, moved_ = true; }
  void MessageRead() { --reading_, moved_ = true; }
  void MessageWritten() { moved_ = true; }
  void CallEnded() { --calls_, moved_ = true; }

  // Hangs up.
  void Close() const;

 private:
  friend class GrpcConnections;
  bool IsOpen() const;

  int fd_ = -1;
  uint64_t cookie_ = 0;  // the system's name of the socket, which it gives to no other
  std::string share_;    // of limits (AddressShare)
  std::atomic<int32_t> calls_{0};
  std::atomic<int32_t> reading_{0};  // of them, whose message has not come yet
  std::atomic<bool> moved_{false};   // a call began, went on or ended since the table looked
  int64_t order_ = 0;                // by when it came, or had a call last
  int64_t bytes_then_ = 0;           // that had come when it moved last
};

class GrpcConnections {
 public:
  explicit GrpcConnections(const GrpcConnectionLimits& limits) : limits_(limits) {}

  // A socket that was just accepted. False: there is no room for it.
  [[nodiscard]] bool Add(int fd, const sockaddr_storage& peer);
  // Null: none that is told from others (a unix socket's). `peer`: as gRPC says it.
  std::shared_ptr<GrpcConnection> Find(const std::string& peer) const;
  // Forgets those that are closed; hangs up on those that send what belongs to no call: a header without end.
  void Sweep();
  int32_t size() const;

 private:
  using Map = std::unordered_map<std::string, std::shared_ptr<GrpcConnection>>;
  // These hold mutex_.
  void Remove(Map::iterator which);
  void RemoveClosed();
  bool MakeRoom(const std::string& share);

  const GrpcConnectionLimits limits_;
  mutable std::mutex mutex_;  // guards everything below
  Map connections_;           // by address and port
  std::unordered_map<std::string, int32_t> of_share_;
  int64_t last_order_ = 0;
};

}  // namespace tramontane
