// health: whether a server lives, or takes requests, over HTTP or gRPC. One line of why not, two seconds at
// most.
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "server/base/file_descriptor.h"
#include "server/base/host_port.h"
#include "server/commands/commands.h"
#include "server/remote/grpc_client.h"

namespace tramontane {
namespace {

using HealthClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience(1900);  // of two seconds that a container's check may take

struct HealthArguments {
  std::string address = "127.0.0.1:8000";
  bool ready = false;
};

int MillisecondsTo(HealthClock::time_point end) {
  return static_cast<int>(std::max<int64_t>(
      0, std::chrono::duration_cast<std::chrono::milliseconds>(end - HealthClock::now()).count()));
}

bool WaitFor(int file, short events, HealthClock::time_point end) {
  pollfd state = {file, events, 0};
  return poll(&state, 1, MillisecondsTo(end)) > 0;
}

StatusOr<std::unique_ptr<FileDescriptor>> Connect(const HostPort& where, HealthClock::time_point end) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int fault = getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found);
  if (fault != 0) return Unavailable(gai_strerror(fault));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  std::string why = "nobody answers";
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    auto file = std::make_unique<FileDescriptor>(
        socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address->ai_protocol));
    if (connect(file->get(), address->ai_addr, address->ai_addrlen) == 0 || errno == EINPROGRESS) {
      int error = 0;
      socklen_t size = sizeof error;
      if (WaitFor(file->get(), POLLOUT, end) &&
          getsockopt(file->get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0) {
        return file;
      }
      why = error != 0 ? std::strerror(error) : "no connection in time";
    } else {
      why = std::strerror(errno);
    }
  }
  return Unavailable(why);
}

// What the other side says first; "": nothing in time.
StatusOr<std::string> AskHttp(const HostPort& where, const std::string& path, HealthClock::time_point end) {
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<FileDescriptor> file, Connect(where, end));
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  if (send(file->get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return Unavailable("it hung up");
  std::string reply;
  char bytes[4096];
  while (reply.size() < 64 << 10 && WaitFor(file->get(), POLLIN, end)) {
    const ssize_t got = recv(file->get(), bytes, sizeof bytes, 0);
    if (got <= 0) break;
    reply.append(bytes, static_cast<size_t>(got));
    if (!reply.starts_with("HTTP/")) break;  // another protocol
  }
  return reply;
}

Status Check(const HealthArguments& arguments) {
  const HealthClock::time_point end = HealthClock::now() + kPatience;
  if (!arguments.address.starts_with("unix:")) {
    TM_ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(arguments.address));
    TM_ASSIGN_OR_RETURN(const std::string reply, AskHttp(where, arguments.ready ? "/ready" : "/health", end));
    if (reply.empty()) return Unavailable("no answer in time");
    if (reply.starts_with("HTTP/1.")) {
      if (reply.compare(8, 5, " 200 ") == 0) return {};
      const size_t body = reply.find("\r\n\r\n");
      return Unavailable("it says" + reply.substr(8, reply.find("\r\n") - 8) +
                         (body == std::string::npos ? "" : ": " + reply.substr(body + 4, 300)));
    }
  }
  return GrpcClient(arguments.address).CheckHealth(arguments.ready, MillisecondsTo(end));
}

int RunHealth(const HealthArguments& arguments) {
  const Status status = Check(arguments);
  if (status.ok()) return 0;
  std::fprintf(stderr, "tramontane health: %s: %s\n", arguments.address.c_str(), status.message().c_str());
  return 1;
}

}  // namespace

void AddHealthCommand(CLI::App& app, RunCommand* run) {
  auto arguments = std::make_shared<HealthArguments>();
  CLI::App* command =
      app.add_subcommand("health", "Exit with 0 if a server lives, else with 1 and a line of why");
  command->add_option("--address", arguments->address, "HOST:PORT of its HTTP or its gRPC, or unix:PATH")
      ->capture_default_str();
  command->add_flag("--ready", arguments->ready, "if it takes requests, not only if it lives");
  command->callback([arguments, run] { *run = [arguments] { return RunHealth(*arguments); }; });
}

}  // namespace tramontane
