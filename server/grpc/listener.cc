#include "server/grpc/listener.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "server/base/host_port.h"

namespace tramontane {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr int kFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
// For what was sent to be acknowledged, windows of nothing too: as gRPC sets it beside its pings.
constexpr unsigned kUserTimeoutMs = 20'000;

// ---- unix sockets -------------------------------------------------------------------------------

// Whether a server listens there. A socket that nobody listens on was left behind.
bool IsListenedOn(const sockaddr_un& address) {
  const FileDescriptor socket(::socket(AF_UNIX, kFlags, 0));
  if (socket.get() < 0) return false;
  const int connected = connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const bool is_full = connected != 0 && errno == EAGAIN;  // of others that it has not accepted
  return connected == 0 || is_full;
}

// What forbids a socket there; "" for nothing.
std::string PathFault(const std::string& path, const sockaddr_un& address) {
  struct stat found{};
  if (lstat(path.c_str(), &found) == 0 && !S_ISSOCK(found.st_mode)) return "what is there is no socket";
  if (IsListenedOn(address)) return std::strerror(EADDRINUSE);
  const std::string folder = std::filesystem::path(path).parent_path();
  return access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0 ? "" : std::strerror(errno);
}

StatusOr<std::unique_ptr<FileDescriptor>> ListenOnPath(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  constexpr size_t kMostBytes = sizeof(address.sun_path) - 1;
  if (path.size() > kMostBytes) {
    return Unavailable("the path has " + std::to_string(path.size()) + " bytes, the most is " +
                       std::to_string(kMostBytes));
  }
  path.copy(address.sun_path, kMostBytes);
  if (const std::string fault = PathFault(path, address); !fault.empty()) return Unavailable(fault);
  unlink(path.c_str());
  auto socket = std::make_unique<FileDescriptor>(::socket(AF_UNIX, kFlags, 0));
  const bool listens = socket->get() >= 0 &&
                       bind(socket->get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                       listen(socket->get(), SOMAXCONN) == 0;
  if (!listens) return Unavailable(std::strerror(errno));
  return socket;
}

// ---- addresses ----------------------------------------------------------------------------------

struct AddressesDelete {
  void operator()(addrinfo* first) const { freeaddrinfo(first); }
};
using Addresses = std::unique_ptr<addrinfo, AddressesDelete>;

StatusOr<Addresses> Resolve(const HostPort& where) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int resolved = getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found);
  if (resolved != 0) return Unavailable(gai_strerror(resolved));
  return Addresses(found);
}

void SetPort(uint16_t port, sockaddr* address) {
  if (address->sa_family == AF_INET) reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(port);
  if (address->sa_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(port);
}

uint16_t PortOf(int socket) {
  sockaddr_in6 address{};
  socklen_t size = sizeof address;
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin6_port);  // where IPv4's is
}

bool IsWildcard(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr == htonl(INADDR_ANY);
  }
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// Null: `errno` says why.
std::unique_ptr<FileDescriptor> ListenOn(const sockaddr* address, socklen_t size) {
  const int on = 1, off = 0;
  auto socket = std::make_unique<FileDescriptor>(::socket(address->sa_family, kFlags, 0));
  const int fd = socket->get();
  if (fd < 0) return nullptr;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof kUserTimeoutMs);
  if (address->sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (bind(fd, address, size) != 0 || listen(fd, SOMAXCONN) != 0) return nullptr;
  return socket;
}

// One socket for both families, where the system has both. Null: as ListenOn.
std::unique_ptr<FileDescriptor> ListenOnAll(uint16_t port) {
  sockaddr_in6 all{};
  all.sin6_family = AF_INET6;
  all.sin6_port = htons(port);
  auto socket = ListenOn(reinterpret_cast<const sockaddr*>(&all), sizeof all);
  if (socket != nullptr || errno == EADDRINUSE) return socket;
  sockaddr_in all_ipv4{};
  all_ipv4.sin_family = AF_INET;
  all_ipv4.sin_port = htons(port);
  return ListenOn(reinterpret_cast<const sockaddr*>(&all_ipv4), sizeof all_ipv4);
}

}  // namespace

StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::Open(const std::string& address) {
  const auto refused = [&address](const std::string& why) {
    return Unavailable("grpc_address: cannot listen on " + address + ": " + why);
  };
  auto listener = std::unique_ptr<GrpcListener>(new GrpcListener());
  if (address.starts_with(kUnix)) {
    std::string path = address.substr(kUnix.size());
    if (path.starts_with("//")) path = path.substr(2);
    auto socket = ListenOnPath(path);
    if (!socket.ok()) return refused(socket.status().message());
    listener->address_ = address;
    listener->path_ = path;
    listener->sockets_.push_back(std::move(*socket));
    return listener;
  }
  auto parsed = ParseHostPort(address);
  if (!parsed.ok()) return InvalidArgument("grpc_address " + parsed.status().message());
  HostPort where = std::move(*parsed);
  auto found = Resolve(where);
  if (!found.ok()) return refused(found.status().message());
  std::string fault;
  for (addrinfo* at = found->get(); at != nullptr; at = at->ai_next) {
    const bool is_all = IsWildcard(*at->ai_addr);
    SetPort(where.port, at->ai_addr);
    auto socket = is_all ? ListenOnAll(where.port) : ListenOn(at->ai_addr, at->ai_addrlen);
    if (socket == nullptr) {
      fault = std::strerror(errno);
      if (errno == EADDRINUSE) return refused(fault);
      continue;
    }
    where.port = PortOf(socket->get());  // of one name every address has the same
    listener->sockets_.push_back(std::move(socket));
    if (is_all) break;
  }
  if (listener->sockets_.empty()) return refused(fault);
  listener->address_ = ToString(where);
  return listener;
}

GrpcListener::~GrpcListener() {
  if (!path_.empty()) unlink(path_.c_str());
}

}  // namespace tramontane
