#include "tests/load/scripted/scripted_target.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "bench/load/clock.h"
#include "bench/load/wire/stamp.h"

namespace tramontane::load {
namespace {

constexpr uint64_t kListenerKey = 0;
constexpr uint64_t kTimerKey = UINT64_MAX;
constexpr uint64_t kWakeKey = UINT64_MAX - 1;
constexpr int kPatienceMs = 1000;  // with a client that does not read

timespec ToTimespec(int64_t ns) { return {ns / kNsPerSecond, ns % kNsPerSecond}; }

void Watch(int poll, int fd, uint64_t key) {
  epoll_event interest{};
  interest.events = EPOLLIN;
  interest.data.u64 = key;
  epoll_ctl(poll, EPOLL_CTL_ADD, fd, &interest);
}

// The value of a header; empty where there is none.
std::string HeaderOf(const std::string& head, const std::string& name) {
  const std::string line = "\r\n" + name + ":";
  const auto at =
      std::search(head.begin(), head.end(), line.begin(), line.end(),
                  [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
  if (at == head.end()) return "";
  const size_t begin = head.find_first_not_of(' ', static_cast<size_t>(at - head.begin()) + line.size());
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

}  // namespace

struct ScriptedTarget::Connection {
  int64_t serial = 0;
  int fd = -1;
  std::string received;
  int32_t requests = 0;
  ScriptedRequest request;
  std::optional<Script> script;  // while a request is being answered
  size_t next_write = 0;
  bool is_closed = false;
};

StatusOr<std::unique_ptr<ScriptedTarget>> ScriptedTarget::Start(Choose choose) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool listens = listener >= 0 &&
                       bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
                       listen(listener, SOMAXCONN) == 0;
  if (!listens) return Unavailable(std::string("a scripted server cannot listen: ") + std::strerror(errno));
  return std::unique_ptr<ScriptedTarget>(new ScriptedTarget(std::move(choose), listener));
}

ScriptedTarget::ScriptedTarget(Choose choose, int listener)
    : choose_(std::move(choose)),
      listener_(listener),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  Watch(poll_, listener_, kListenerKey);
  Watch(poll_, timer_, kTimerKey);
  Watch(poll_, wake_, kWakeKey);
  thread_ = std::thread([this] { Run(); });
}

ScriptedTarget::~ScriptedTarget() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  eventfd_write(wake_, 1);
  thread_.join();
  for (const auto& [serial, connection] : connections_) close(connection->fd);
  for (const int fd : {listener_, poll_, timer_, wake_}) close(fd);
}

std::string ScriptedTarget::url() const {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  return "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

std::map<std::string, ScriptLog> ScriptedTarget::Logs() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return logs_;
}

int64_t ScriptedTarget::accepted() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return accepted_;
}

void ScriptedTarget::Run() {
  prctl(PR_SET_TIMERSLACK, 1);  // ns; 50,000 otherwise
  for (;;) {
    std::array<epoll_event, 256> ready;
    const int count = epoll_wait(poll_, ready.data(), static_cast<int>(ready.size()), -1);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (ends_) return;
    }
    for (int i = 0; i < count; ++i) {
      const uint64_t key = ready[static_cast<size_t>(i)].data.u64;
      const auto found = connections_.find(static_cast<int64_t>(key));
      if (key == kListenerKey) Accept();
      if (found != connections_.end()) Read(found->second.get());
    }
    uint64_t expirations = 0;
    if (read(timer_, &expirations, sizeof(expirations)) < 0 && errno != EAGAIN) return;
    while (!timers_.empty() && timers_.top().at_ns <= NowNs()) {
      const Timer timer = timers_.top();
      timers_.pop();
      const auto found = connections_.find(timer.serial);
      if (found != connections_.end()) Proceed(found->second.get(), NowNs());
    }
    std::erase_if(connections_, [](const auto& entry) { return entry.second->is_closed; });
    SetTimer();
  }
}

void ScriptedTarget::SetTimer() {
  itimerspec next{};
  if (!timers_.empty()) next.it_value = ToTimespec(std::max<int64_t>(1, timers_.top().at_ns));
  timerfd_settime(timer_, TFD_TIMER_ABSTIME, &next, nullptr);
}

void ScriptedTarget::Accept() {
  for (;;) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    auto connection = std::make_unique<Connection>();
    connection->serial = next_serial_++;
    connection->fd = fd;
    Watch(poll_, fd, static_cast<uint64_t>(connection->serial));
    connections_.emplace(connection->serial, std::move(connection));
    const std::lock_guard<std::mutex> lock(mutex_);
    ++accepted_;
  }
}

void ScriptedTarget::Read(Connection* connection) {
  if (connection->is_closed) return;
  std::array<char, 65536> bytes;
  const ssize_t count = recv(connection->fd, bytes.data(), bytes.size(), 0);
  if (count < 0 && errno == EAGAIN) return;
  if (count <= 0) {
    connection->script.reset();
    close(connection->fd);
    connection->fd = -1;
    connection->is_closed = true;
    return;
  }
  connection->received.append(bytes.data(), static_cast<size_t>(count));
  if (!connection->script.has_value() && TakeRequest(connection)) Begin(connection);
}

// True when a whole request was there.
bool ScriptedTarget::TakeRequest(Connection* connection) {
  std::string& received = connection->received;
  const size_t head_end = received.find("\r\n\r\n");
  if (head_end == std::string::npos) return false;
  const std::string head = received.substr(0, head_end + 2);
  const size_t length = std::strtoul(HeaderOf(head, "Content-Length").c_str(), nullptr, 10);
  if (received.size() < head_end + 4 + length) return false;
  ScriptedRequest& request = connection->request;
  request.received_ns = NowNs();
  request.method = head.substr(0, head.find(' '));
  const size_t path = request.method.size() + 1;
  request.path = head.substr(path, head.find(' ', path) - path);
  request.head = head;
  request.body = received.substr(head_end + 4, length);
  request.request_id = HeaderOf(head, "x-request-id");
  request.on_connection = ++connection->requests;
  if (request.request_id.empty()) {
    request.request_id = std::to_string(connection->serial) + "/" + std::to_string(connection->requests);
  }
  received.erase(0, head_end + 4 + length);
  return true;
}

void ScriptedTarget::Begin(Connection* connection) {
  connection->script = choose_(connection->request);
  connection->next_write = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ScriptLog& log = logs_[connection->request.request_id];
    log = ScriptLog{};
    log.received_ns = connection->request.received_ns;
  }
  Proceed(connection, NowNs());
}

// Does all that is due, and sets the timer of what is not.
void ScriptedTarget::Proceed(Connection* connection, int64_t now_ns) {
  while (connection->script.has_value()) {
    const Script& script = *connection->script;
    const bool has_write = connection->next_write < script.writes.size();
    const int64_t last_ns = script.writes.empty() ? 0 : script.writes.back().after_ns;
    const int64_t after_ns =
        has_write ? script.writes[connection->next_write].after_ns : std::max(script.end_after_ns, last_ns);
    const int64_t due_ns = connection->request.received_ns + after_ns;
    if (due_ns > now_ns) return timers_.push({due_ns, connection->serial});
    if (!has_write) return End(connection);
    const Script::Write& write = script.writes[connection->next_write++];
    {  // before the send: a client that has the bytes finds them in the log
      const std::lock_guard<std::mutex> lock(mutex_);
      logs_[connection->request.request_id].writes.push_back({due_ns, NowNs(), write.content_events});
    }
    WriteOut(connection, write.bytes);
  }
}

void ScriptedTarget::WriteOut(Connection* connection, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = send(connection->fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count > 0) bytes.remove_prefix(static_cast<size_t>(count));
    pollfd one{connection->fd, POLLOUT, 0};
    if (count < 0 && (errno != EAGAIN || poll(&one, 1, kPatienceMs) <= 0)) return;
  }
}

void ScriptedTarget::End(Connection* connection) {
  const ScriptEnd end = connection->script->end;
  if (end == ScriptEnd::kHold) return;  // its script stays, so that nothing else is answered
  connection->script.reset();
  if (end == ScriptEnd::kKeep) {
    if (TakeRequest(connection)) Begin(connection);
    return;
  }
  if (end == ScriptEnd::kReset) {
    const linger at_once{1, 0};
    setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  close(connection->fd);
  connection->fd = -1;
  connection->is_closed = true;
}

}  // namespace tramontane::load
