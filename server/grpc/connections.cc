#include "server/grpc/connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "server/base/file_descriptor.h"
#include "server/base/peer_address.h"

namespace tramontane {
namespace {

// Of a connection none of whose calls waits for its message: headers, acknowledgements, windows.
constexpr int64_t kMaxIdleBytes = 1 << 20;

uint64_t Cookie(int fd) {
  uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

int64_t BytesReceived(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  const bool is_known = getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0;
  return is_known ? static_cast<int64_t>(info.tcpi_bytes_received) : 0;
}

struct PeerName {
  std::string address;
  std::string port;
};

PeerName NameOf(const sockaddr_storage& peer) {
  char text[INET6_ADDRSTRLEN] = "";
  if (peer.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(peer);
    inet_ntop(AF_INET, &in.sin_addr, text, sizeof text);
    return {PlainAddress(text), std::to_string(ntohs(in.sin_port))};
  }
  if (peer.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(peer);
    inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof text);
    return {PlainAddress(text), std::to_string(ntohs(in.sin6_port))};
  }
  return {AddressOfGrpcPeer("unix:"), ""};
}

}  // namespace

// ---- GrpcConnection ---------------------------------------------------------------------------------

bool GrpcConnection::IsOpen() const { return cookie_ != 0 && Cookie(fd_) == cookie_; }

// By a number of its own: the other one may be given to somebody else meanwhile. What has come is dropped: it
// would still be read.
void GrpcConnection::Close() const {
  const FileDescriptor own(fcntl(fd_, F_DUPFD_CLOEXEC, 0));
  if (own.get() < 0 || Cookie(own.get()) != cookie_) return;
  shutdown(own.get(), SHUT_RDWR);
  constexpr size_t kMuch = 1 << 20;
  while (recv(own.get(), nullptr, kMuch, MSG_TRUNC | MSG_DONTWAIT) > 0) {
  }
}

// ---- GrpcConnections ----------------------------------------------------------------------------

bool GrpcConnections::Add(int fd, const sockaddr_storage& peer) {
  const auto connection = std::make_shared<GrpcConnection>();
  connection->fd_ = fd;
  connection->cookie_ = Cookie(fd);
  PeerName name = NameOf(peer);
  connection->share_ = AddressShare(name.address);
  if (name.port.empty()) {
    name.port = std::to_string(connection->cookie_);
    connection->calls_ = 1;  // may have some: they do not say whose they are
  }
  std::lock_guard lock(mutex_);
  const bool is_full =
      limits_.max_connections > 0 && static_cast<int32_t>(connections_.size()) >= limits_.max_connections;
  if (is_full && !MakeRoom(connection->share_)) return false;
  connection->order_ = ++last_order_;
  ++of_share_[connection->share_];
  const std::string key = name.address + " " + name.port;
  if (const auto old = connections_.find(key); old != connections_.end()) Remove(old);
  connections_[key] = connection;
  return true;
}

std::shared_ptr<GrpcConnection> GrpcConnections::Find(const std::string& peer) const {
  const std::string key = AddressOfGrpcPeer(peer) + " " + peer.substr(peer.rfind(':') + 1);
  std::lock_guard lock(mutex_);
  const auto found = connections_.find(key);
  return found == connections_.end() ? nullptr : found->second;
}

int32_t GrpcConnections::size() const {
  std::lock_guard lock(mutex_);
  return static_cast<int32_t>(connections_.size());
}

void GrpcConnections::Remove(Map::iterator which) {
  const auto share = of_share_.find(which->second->share_);
  if (--share->second == 0) of_share_.erase(share);
  connections_.erase(which);
}

void GrpcConnections::RemoveClosed() {
  for (auto at = connections_.begin(); at != connections_.end();) {
    const auto which = at++;
    if (!which->second->IsOpen()) Remove(which);
  }
}

// Who has more than half gives way to others, with what has no call first; else what has no call does, the
// one longest without.
bool GrpcConnections::MakeRoom(const std::string& share) {
  RemoveClosed();
  if (static_cast<int32_t>(connections_.size()) < limits_.max_connections) return true;
  const int32_t half = limits_.max_connections / 2;
  const auto has_more = [&](const std::string& of) { return of_share_.at(of) > half; };
  const auto rank = [&](const GrpcConnection& connection) {
    const bool gives_way = connection.share_ != share && has_more(connection.share_);
    return gives_way ? (connection.calls_ == 0 ? 0 : 1) : connection.calls_ == 0 ? 2 : 3;
  };
  const auto goes_before = [&](const Map::value_type& a, const Map::value_type& b) {
    return std::pair(rank(*a.second), a.second->order_) < std::pair(rank(*b.second), b.second->order_);
  };
  const auto first = std::min_element(connections_.begin(), connections_.end(), goes_before);
  if (rank(*first->second) == 3) return false;
  // gRPC closes it soon; until then it is one too many.
  first->second->Close();
  Remove(first);
  return true;
}

void GrpcConnections::Sweep() {
  std::lock_guard lock(mutex_);
  RemoveClosed();
  int64_t arriving = 0;
  int64_t most = 0;
  const GrpcConnection* largest = nullptr;
  for (const auto& [key, connection] : connections_) {
    const int64_t bytes = BytesReceived(connection->fd_);
    if (connection->moved_.exchange(false)) {
      connection->bytes_then_ = bytes;
      connection->order_ = ++last_order_;
    }
    const int64_t since = bytes - connection->bytes_then_;
    arriving += since;
    const int64_t allowed = connection->reading_ > 0 ? limits_.max_arriving_bytes / 2 : kMaxIdleBytes;
    if (since > allowed) connection->Close();
    if (since > most) {
      most = since;
      largest = connection.get();
    }
  }
  if (arriving > limits_.max_arriving_bytes) largest->Close();
}

}  // namespace tramontane
