#include "tests/support/http_test_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <memory>

namespace tramontane {
namespace {

constexpr int kPatienceSeconds = 60;
constexpr char kLastChunk[] = "\r\n0\r\n\r\n";

int64_t ThreadCpuNs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

}  // namespace

std::string HttpReply::Header(const std::string& name) const {
  for (const auto& [field, value] : headers) {
    if (field == name) return value;
  }
  return "";
}

HttpTestClient::HttpTestClient(const std::string& address, const Options& options) {
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return;
  if (options.receive_buffer_bytes > 0) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &options.receive_buffer_bytes,
               sizeof(options.receive_buffer_bytes));
  }
  if (!options.from.empty()) {
    sockaddr_in from{};
    from.sin_family = AF_INET;
    inet_pton(AF_INET, options.from.c_str(), &from.sin_addr);
    bind(fd_, reinterpret_cast<const sockaddr*>(&from), sizeof(from));
  }
  const timeval patience{kPatienceSeconds, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) Close();
}

HttpTestClient::~HttpTestClient() { Close(); }

bool HttpTestClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool HttpTestClient::Fill() {
  char bytes[16384];
  const ssize_t got = recv(fd_, bytes, sizeof(bytes), 0);
  if (got <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(got));
  return true;
}

// Without its end; "" also when the connection ends.
std::string HttpTestClient::TakeLine() {
  size_t end = buffer_.find("\r\n");
  while (end == std::string::npos && Fill()) end = buffer_.find("\r\n");
  if (end == std::string::npos) return "";
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return line;
}

HttpReply HttpTestClient::Read(bool to_head) {
  HttpReply reply;
  const std::string status_line = TakeLine();
  if (status_line.size() < 12) return reply;
  const int status = std::atoi(status_line.c_str() + 9);
  for (std::string line = TakeLine(); !line.empty(); line = TakeLine()) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) return reply;
    reply.headers.emplace_back(line.substr(0, colon), line.substr(colon + 2));
  }
  const bool no_body = to_head || status < 200 || status == 204;
  if (!no_body && reply.Header("transfer-encoding") == "chunked") {
    for (;;) {
      const std::string size_line = TakeLine();
      if (size_line.empty()) return reply;  // the connection ended
      const size_t size = std::strtoul(size_line.c_str(), nullptr, 16);
      while (buffer_.size() < size + 2) {
        if (!Fill()) return reply;
      }
      reply.body.append(buffer_, 0, size);
      buffer_.erase(0, size + 2);
      if (size == 0) break;
      ++reply.chunks;
    }
  } else if (!no_body && !reply.Header("content-length").empty()) {
    const size_t size = std::strtoul(reply.Header("content-length").c_str(), nullptr, 10);
    while (buffer_.size() < size) {
      if (!Fill()) return reply;
    }
    reply.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
  } else if (!no_body) {
    reply.body = ReadToEnd();
  }
  reply.status = status;
  return reply;
}

std::string HttpTestClient::ReadUntil(std::string_view text) {
  size_t at = buffer_.find(text);
  while (at == std::string::npos && Fill()) at = buffer_.find(text);
  const size_t end = at == std::string::npos ? buffer_.size() : at + text.size();
  std::string read = buffer_.substr(0, end);
  buffer_.erase(0, end);
  return read;
}

std::string HttpTestClient::ReadToEnd() {
  while (Fill()) {
  }
  std::string read;
  read.swap(buffer_);
  return read;
}

void HttpTestClient::ShutdownSend() { shutdown(fd_, SHUT_WR); }

void HttpTestClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void HttpTestClient::Reset() {
  const linger at_once{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  Close();
}

std::string HttpGet(const std::string& path, const std::vector<std::string>& headers) {
  std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n";
  for (const std::string& header : headers) request += header + "\r\n";
  return request + "\r\n";
}

std::string HttpPost(const std::string& path, const std::string& body,
                     const std::vector<std::string>& headers) {
  std::string request = "POST " + path + " HTTP/1.1\r\nHost: localhost\r\n";
  bool has_type = false;
  for (const std::string& header : headers) {
    request += header + "\r\n";
    has_type = has_type || header.rfind("Content-Type", 0) == 0;
  }
  if (!has_type) request += "Content-Type: application/json\r\n";
  return request + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

HttpReply Fetch(const std::string& address, const std::string& request) {
  HttpTestClient client(address);
  client.Send(request);
  return client.Read(request.rfind("HEAD ", 0) == 0);
}

HttpReply ParseReply(std::string bytes) {
  HttpTestClient client;
  client.buffer_ = std::move(bytes);
  return client.Read();
}

SwarmResult RunSwarm(const SwarmOptions& options) {
  const int64_t cpu_before = ThreadCpuNs();
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  std::vector<std::unique_ptr<HttpTestClient>> clients;
  SwarmResult result;
  result.replies.resize(static_cast<size_t>(options.streams));
  size_t open = 0;
  for (size_t i = 0; i < result.replies.size(); ++i) {
    const auto& client = clients.emplace_back(std::make_unique<HttpTestClient>(options.address));
    if (!client->connected() || !client->Send(options.request)) continue;
    epoll_event interest{};
    interest.events = EPOLLIN;
    interest.data.u64 = i;
    epoll_ctl(epoll, EPOLL_CTL_ADD, client->fd(), &interest);
    ++open;
  }
  if (options.before_reading) options.before_reading();
  std::array<epoll_event, 256> ready;
  std::array<char, 65536> bytes;
  while (open > 0) {
    const int count =
        epoll_wait(epoll, ready.data(), static_cast<int>(ready.size()), kPatienceSeconds * 1000);
    if (count <= 0) break;
    for (int i = 0; i < count; ++i) {
      const size_t stream = ready[static_cast<size_t>(i)].data.u64;
      const ssize_t got = recv(clients[stream]->fd(), bytes.data(), bytes.size(), 0);
      std::string& reply = result.replies[stream];
      if (got > 0) reply.append(bytes.data(), static_cast<size_t>(got));
      if (got > 0 && !reply.ends_with(kLastChunk)) continue;
      clients[stream]->Close();
      --open;
    }
  }
  close(epoll);
  result.cpu_ns = ThreadCpuNs() - cpu_before;
  return result;
}

}  // namespace tramontane
