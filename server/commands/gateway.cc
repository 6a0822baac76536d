// gateway --backend HOST:PORT[,...]: OpenAI's HTTP API in a process of its own, over gRPC to one or several
// servers.
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/access/keyed_client.h"
#include "server/api/gateway.h"
#include "server/base/heap_trim.h"
#include "server/base/host_port.h"
#include "server/commands/client_key.h"
#include "server/commands/client_tls_flags.h"
#include "server/commands/commands.h"
#include "server/commands/key_settings.h"
#include "server/commands/memory_bounds.h"
#include "server/commands/setting_flags.h"
#include "server/commands/start_guard.h"
#include "server/commands/stop_signals.h"
#include "server/grpc/library_logs.h"
#include "server/remote/gateway_metrics.h"
#include "server/remote/remote_client.h"
#include "server/setup/config.h"
#include "server/setup/logging.h"

namespace tramontane {
namespace {

constexpr int64_t kWaitForBackendMs = 5000;
constexpr int64_t kLookMs = 100;  // at the stop signals

struct GatewayArguments {
  std::vector<std::string> backends;
  std::string api_key_file;
  ClientTlsFlags tls;  // to the backends
  GivenSettings flags;
};

// Those of `serve` that mean something here: HTTP's, what is kept for clients, and how to stop and log.
bool MeansSomethingHere(std::string_view key) {
  constexpr std::array<std::string_view, 17> kOthers = {"api_keys",
                                                        "tls_cert",
                                                        "tls_key",
                                                        "tls_client_ca",
                                                        "max_answer_bytes",
                                                        "max_unread_answer_bytes",
                                                        "trusted_proxy",
                                                        "protect_metrics",
                                                        "any_model",
                                                        "strict_fields",
                                                        "per_request_metrics",
                                                        "drain_delay",
                                                        "drain_timeout",
                                                        "log_level",
                                                        "log_format",
                                                        "log_requests",
                                                        "log_prompts"};
  return key.starts_with("http_") || std::find(kOthers.begin(), kOthers.end(), key) != kOthers.end();
}

// gRPC's other ways to name a server, which it reads itself.
bool IsGrpcName(std::string_view address) {
  constexpr std::array<std::string_view, 4> kSchemes = {"unix:", "dns:", "ipv4:", "ipv6:"};
  return std::any_of(kSchemes.begin(), kSchemes.end(),
                     [address](std::string_view scheme) { return address.starts_with(scheme); });
}

std::vector<std::string> BackendProblems(const std::vector<std::string>& backends) {
  std::vector<std::string> problems;
  for (auto at = backends.begin(); at != backends.end(); ++at) {
    const Status status = IsGrpcName(*at) ? Status::Ok() : ParseHostPort(*at).status();
    if (!status.ok()) problems.push_back("--backend " + status.message());
    if (std::find(backends.begin(), at, *at) != at) {
      problems.push_back("--backend is \"" + *at + "\" twice: the metrics of each server go by its address");
    }
  }
  return problems;
}

// Every problem, one line each.
std::vector<std::string> EffectiveGatewayConfig(const GatewayArguments& arguments, ServeConfig* config) {
  std::vector<std::string> problems = ApplyFlags(arguments.flags, config);
  for (std::string& problem : BackendProblems(arguments.backends)) problems.push_back(std::move(problem));
  if (config->http_address == "off") {
    problems.push_back("--http-address is \"off\": it must be HOST:PORT, a gateway is nothing but HTTP");
  }
  return problems;
}

GatewayOptions GatewayOptionsOf(const ServeConfig& config, const KeptDoors& doors) {
  GatewayOptions options;
  options.address = config.http_address;
  options.version = TRAMONTANE_VERSION;
  options.cors_origins = config.http_cors_origin;
  options.hosts = config.http_host;
  options.io_threads = static_cast<int32_t>(config.http_io_threads);
  options.handler_threads = static_cast<int32_t>(config.http_handler_threads);
  options.limits = HttpLimitsOf(config);
  options.doorkeeper = doors.doorkeeper;
  options.tls = doors.tls;
  options.protect_metrics = config.protect_metrics;
  options.field_limits.max_answer_bytes = config.max_answer_bytes;
  options.any_model = config.any_model;
  options.request_log = RequestLogOf(config.log_requests, config.log_prompts);
  options.per_request_metrics = config.per_request_metrics;
  options.strict_fields = config.strict_fields == "on";
  return options;
}

// False when there is none in time, or nobody waits for one any more.
bool WaitForBackend(const RemoteClient& client) {
  for (int64_t waited_ms = 0; waited_ms < kWaitForBackendMs; waited_ms += kLookMs) {
    if (client.WaitUntilReady(kLookMs)) return true;
    if (StopRequested(0)) return false;
  }
  return false;
}

Status RunUntilStopped(const GatewayArguments& arguments, const ServeConfig& config, StartGuard& starting) {
  RouteLibraryLogs();
  TM_ASSIGN_OR_RETURN(const std::string api_key, ClientKey(arguments.api_key_file));
  TM_ASSIGN_OR_RETURN(const ClientTls tls, ReadClientTls(arguments.tls));
  RemoteClient client({.backends = arguments.backends,
                       .api_key = api_key,
                       .tls = tls,
                       .max_answer_bytes = config.max_answer_bytes});
  KeyedClient keyed(client);
  TM_ASSIGN_OR_RETURN(const KeptDoors doors, OpenDoors(config));
  GatewayOptions options = GatewayOptionsOf(config, doors);
  ByteBudget unread_answers(config.max_unread_answer_bytes);
  options.unread_answers = &unread_answers;
  const auto requests = std::make_shared<RequestCounts>();
  options.request_counts = requests;
  options.counts_events = true;
  std::atomic<const Gateway*> door{nullptr};  // the first scrape may come before there is one here
  std::atomic<bool> draining{false};
  options.metrics = [&] {
    ProcessCounts process = {.dropped_log_lines = DroppedLogLines(),
                             .reloads = ReloadCounts(),
                             .version = TRAMONTANE_VERSION,
                             .draining = draining};
    process.held.unread_answers = unread_answers.bytes();
    if (const Gateway* http = door) {
      process.connections.http = http->connections();
      process.held.request_bodies = http->held_body_bytes();
    }
    return GatewayMetricsText(client.backends(), client.unsent(), *requests, process);
  };
  TM_ASSIGN_OR_RETURN(const std::unique_ptr<Gateway> gateway, Gateway::Start(std::move(options), keyed));
  door = gateway.get();
  // A server may also come later: until then /ready says 503.
  if (!WaitForBackend(client)) spdlog::warn("no server is up yet of {}", fmt::join(arguments.backends, ", "));
  spdlog::info(
      "limit: messages of a server = {} bytes, {} of texts and lists: a longer one is 502 bad_gateway",
      kMaxShortMessageBytes, kMaxLongMessageBytes);
  spdlog::info("memory: {}", SumOf(GatewayMemoryBounds(config, std::ssize(arguments.backends))));
  starting.Release();
  const nlohmann::json ready = {{"http", gateway->address()}};
  std::printf("ready %s\n", ready.dump().c_str());
  std::fflush(stdout);

  HeapTrim heap;
  while (!StopRequested(kLookMs)) heap.Look(std::chrono::steady_clock::now());
  WaitForBalancers(config.drain_delay, [&] { gateway->Leave(); }, [] { return false; });
  spdlog::info("stopping: new requests are refused, what runs may finish within {} s", config.drain_timeout);
  draining = true;
  if (!gateway->Drain(static_cast<int64_t>(config.drain_timeout * 1e9))) {
    spdlog::warn("stopping: the drain timeout is over, what still runs is cancelled");
  }
  gateway->Stop();
  return {};
}

int RunGateway(const GatewayArguments& arguments) {
  ServeConfig config;
  const std::vector<std::string> problems = EffectiveGatewayConfig(arguments, &config);
  for (const std::string& problem : problems) {
    std::fprintf(stderr, "tramontane gateway: %s\n", problem.c_str());
  }
  if (!problems.empty()) return 2;
  StartGuard starting;
  if (const Status status = PrepareToServe(config.log_level, config.log_format); !status.ok()) {
    std::fprintf(stderr, "tramontane gateway: %s\n", status.ToString().c_str());
    return 1;
  }
  const Status status = RunUntilStopped(arguments, config, starting);
  if (status.ok()) return 0;
  spdlog::error("{}", status.ToString());
  return 1;
}

}  // namespace

void AddGatewayCommand(CLI::App& app, RunCommand* run) {
  auto arguments = std::make_shared<GatewayArguments>();
  CLI::App* command = app.add_subcommand("gateway", "Answer over HTTP for servers that answer over gRPC");
  command->add_option("--backend", arguments->backends, "gRPC addresses of the servers; may be repeated")
      ->required()
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("HOST:PORT[,HOST:PORT]");
  AddApiKeyFlag(&arguments->api_key_file, command);
  AddTlsFlags(&arguments->tls, command);
  AddSettingFlags(MeansSomethingHere, &arguments->flags, command);
  command->callback([arguments, run] { *run = [arguments] { return RunGateway(*arguments); }; });
}

}  // namespace tramontane
