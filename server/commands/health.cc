// health: whether a server lives, or takes requests, over HTTP or gRPC. One line of why not, two seconds at
// most.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "server/base/host_port.h"
#include "server/commands/client_tls_flags.h"
#include "server/commands/commands.h"
#include "server/commands/probe_connection.h"
#include "server/remote/grpc_client.h"

namespace tramontane {
namespace {

using HealthClock = ProbeConnection::Clock;

constexpr std::chrono::milliseconds kPatience(1900);  // of two seconds that a container's check may take

struct HealthArguments {
  std::string address = "127.0.0.1:8000";
  bool ready = false;
  ClientTlsFlags tls;
};

int MillisecondsTo(HealthClock::time_point end) {
  return static_cast<int>(std::max<int64_t>(
      0, std::chrono::duration_cast<std::chrono::milliseconds>(end - HealthClock::now()).count()));
}

// What the other side says first; "": nothing in time.
StatusOr<std::string> AskHttp(const HostPort& where, const ClientTls& tls, const std::string& path,
                              HealthClock::time_point end) {
  std::shared_ptr<ssl_ctx_st> context;
  if (tls.is_on) {
    TM_ASSIGN_OR_RETURN(context, ClientTlsContext(tls));
  }
  TM_ASSIGN_OR_RETURN(const auto connection, ProbeConnection::Open(where, context.get(), end));
  const bool is_sent =
      connection->Send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  if (!is_sent) return Unavailable("it hung up");
  std::string reply;
  while (reply.size() < 64 << 10) {
    const std::string more = connection->Receive();
    if (more.empty()) break;
    reply += more;
    if (!reply.starts_with("HTTP/")) break;  // another protocol
  }
  return reply;
}

Status Check(const HealthArguments& arguments) {
  const HealthClock::time_point end = HealthClock::now() + kPatience;
  TM_ASSIGN_OR_RETURN(const ClientTls tls, ReadClientTls(arguments.tls));
  if (!arguments.address.starts_with("unix:")) {
    TM_ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(arguments.address));
    const std::string path = arguments.ready ? "/ready" : "/health";
    TM_ASSIGN_OR_RETURN(const std::string reply, AskHttp(where, tls, path, end));
    // Over TLS gRPC hangs up on a client that says it speaks HTTP.
    if (reply.empty() && !tls.is_on) return Unavailable("no answer in time");
    if (reply.starts_with("HTTP/1.")) {
      if (reply.compare(8, 5, " 200 ") == 0) return {};
      const size_t body = reply.find("\r\n\r\n");
      return Unavailable("it says" + reply.substr(8, reply.find("\r\n") - 8) +
                         (body == std::string::npos ? "" : ": " + reply.substr(body + 4, 300)));
    }
  }
  return GrpcClient(arguments.address, /*api_key=*/"", tls).CheckHealth(arguments.ready, MillisecondsTo(end));
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
  AddTlsFlags(&arguments->tls, command);
  command->callback([arguments, run] { *run = [arguments] { return RunHealth(*arguments); }; });
}

}  // namespace tramontane
