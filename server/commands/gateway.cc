// gateway --backend HOST:PORT[,...]: OpenAI's HTTP API in a process of its own, over gRPC to one or several
// servers.
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/commands/commands.h"
#include "server/commands/start_guard.h"
#include "server/commands/stop_signals.h"
#include "server/gateway/gateway.h"
#include "server/logging.h"
#include "server/metrics.h"
#include "server/remote_client.h"

namespace tramontane {
namespace {

constexpr int64_t kWaitForBackendMs = 5000;
constexpr int64_t kLookMs = 100;  // at the stop signals meanwhile

struct GatewayArguments {
  std::vector<std::string> backends;
  GatewayOptions gateway;
  double drain_timeout = 30.0;  // seconds
  std::string log_level = "info";
  std::string log_format = "text";
};

// False when there is none in time, or nobody waits for one any more.
bool WaitForBackend(const RemoteClient& client) {
  for (int64_t waited_ms = 0; waited_ms < kWaitForBackendMs; waited_ms += kLookMs) {
    if (client.WaitUntilReady(kLookMs)) return true;
    if (StopRequested(0)) return false;
  }
  return false;
}

Status RunUntilStopped(const GatewayArguments& arguments, StartGuard& starting) {
  RemoteClient client({.backends = arguments.backends});
  GatewayOptions options = arguments.gateway;
  options.metrics = [&client] { return GatewayMetricsText(client.backends()); };
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<Gateway> gateway, Gateway::Start(std::move(options), client));
  // A server may also come later: until then /ready says 503.
  if (!WaitForBackend(client)) spdlog::warn("no server is up yet");
  for (const BackendState& backend : client.backends()) {
    spdlog::info("server {} is {}", backend.address, backend.up ? "up" : "down");
  }
  starting.Release();
  const nlohmann::json ready = {{"http", gateway->address()}};
  std::printf("ready %s\n", ready.dump().c_str());
  std::fflush(stdout);

  while (!StopRequested(-1)) {
  }
  spdlog::info("stopping: new requests are refused, what runs may finish within {} s",
               arguments.drain_timeout);
  if (!gateway->Drain(static_cast<int64_t>(arguments.drain_timeout * 1e9))) {
    spdlog::warn("stopping: the drain timeout is over, what still runs is cancelled");
  }
  gateway->Stop();
  return {};
}

int RunGateway(const GatewayArguments& arguments) {
  StartGuard starting;
  if (const Status status = PrepareToServe(arguments.log_level, arguments.log_format); !status.ok()) {
    std::fprintf(stderr, "tramontane gateway: %s\n", status.ToString().c_str());
    return 1;
  }
  const Status status = RunUntilStopped(arguments, starting);
  if (status.ok()) return 0;
  spdlog::error("{}", status.ToString());
  return 1;
}

}  // namespace

void AddGatewayCommand(CLI::App& app, RunCommand* run) {
  auto arguments = std::make_shared<GatewayArguments>();
  arguments->gateway.version = TRAMONTANE_VERSION;
  CLI::App* command = app.add_subcommand("gateway", "Answer over HTTP for servers that answer over gRPC");
  command->add_option("--backend", arguments->backends, "gRPC addresses of the servers; may be repeated")
      ->required()
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("HOST:PORT[,HOST:PORT]");
  command
      ->add_option("--http-address", arguments->gateway.address, "where to listen; port 0 picks a free one")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  command
      ->add_option("--http-cors-origin", arguments->gateway.cors_origin,
                   "origin whose web pages may call, * for any; none by default")
      ->type_name("ORIGIN");
  command->add_flag("--any-model", arguments->gateway.any_model,
                    "take any model's name for the one that is served");
  command
      ->add_option("--drain-timeout", arguments->drain_timeout,
                   "how long a stopping gateway lets running requests finish")
      ->check(CLI::Range(0.0, 86400.0))
      ->type_name("SECONDS")
      ->capture_default_str();
  command->add_option("--log-level", arguments->log_level, "least level that is logged")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  command->add_option("--log-format", arguments->log_format, "text, or one JSON object a line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->callback([arguments, run] { *run = [arguments] { return RunGateway(*arguments); }; });
}

}  // namespace tramontane
