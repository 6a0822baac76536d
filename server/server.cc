#include "server/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/core/check.h"
#include "server/access/doorkeeper.h"
#include "server/api/gateway.h"
#include "server/api/routes.h"
#include "server/base/host_port.h"
#include "server/core/engine_client.h"
#include "server/core/inference_core.h"
#include "server/grpc/door.h"
#include "server/setup/logging.h"
#include "server/setup/reload_watch.h"
#include "server/watch/metrics.h"

namespace tramontane {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kShutdownGrace = 1s;
constexpr std::chrono::nanoseconds kEndingGrace = 3s;  // for what a stop ends to be told so

InferenceCoreOptions CoreOptions(const ServerOptions& options, std::shared_ptr<SessionFiles> files) {
  return {.workers = {.threads = options.worker_threads, .max_queued = options.max_queued_work},
          .compiler_threads = options.compiler_threads,
          .max_unread_answer_bytes = options.max_unread_answer_bytes,
          .max_streams = options.max_streams,
          .sessions = options.sessions,
          .session_files = std::move(files),
          .step_timeout = options.step_timeout};
}

GrpcDoorOptions GrpcOptions(const ServerOptions& options) {
  return {.address = options.grpc_address,
          .writer_threads = options.writer_threads,
          .max_streams = options.max_streams,
          .max_connections = options.grpc_max_connections,
          .doorkeeper = options.doorkeeper,
          .tls = options.tls,
          .request_log = options.request_log,
          .reflection = options.grpc_reflection,
          .memory_bytes = options.grpc_memory_bytes,
          .read_timeout = options.grpc_read_timeout,
          .write_timeout = options.grpc_write_timeout};
}

// The doors share the system's files: where it has fewer than both may want, gRPC's connections get half at
// most, and HTTP's the rest but for what the process needs itself.
void ShareFiles(ServerOptions* options) {
  constexpr int64_t kOwnFiles = 64;
  const int64_t grpc = options->grpc_max_connections;
  const int64_t http = options->http_address.empty() ? 0 : options->http_limits.max_connections;
  rlimit limit{};
  if (grpc == 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto wanted = std::min<rlim_t>(limit.rlim_max, static_cast<rlim_t>(grpc + http + 512));
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  const int64_t files = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 30)) - kOwnFiles;
  if (files >= grpc + http) return;
  const int64_t half = std::max<int64_t>(1, files / 2);
  options->grpc_max_connections = static_cast<int32_t>(std::min(grpc, std::max(half, files - http)));
  options->http_limits.max_connections =
      static_cast<int32_t>(std::min(http, std::max<int64_t>(1, files - options->grpc_max_connections)));
}

}  // namespace

struct Server::Impl {
  Impl(const ServerOptions& options, std::shared_ptr<SessionFiles> files)
      : core(CoreOptions(options, std::move(files))), client(core) {}

  InferenceCore core;
  EngineClient client;
  std::unique_ptr<GrpcDoor> grpc;
  std::unique_ptr<Gateway> gateway;  // null: no HTTP
  std::unique_ptr<Gateway> admin;    // null: no admin door

  const std::shared_ptr<HttpCounts> http_counts = NewHttpCounts();

  // Of what is there: the first scrape may come while the doors are being opened.
  std::string MetricsText(bool legacy_names);
  GatewayOptions OptionsOf(const ServerOptions& options, const std::string& address);
  Status StartHttp(const ServerOptions& options);
  Status StartAdmin(const ServerOptions& options);
};

StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options) {
  ShareFiles(&options);
  std::shared_ptr<SessionFiles> files;
  if (!options.session_dir.empty()) {
    TM_ASSIGN_OR_RETURN(files, SessionFiles::Open(options.session_dir, options.session_dir_limits));
  }
  auto impl = std::make_unique<Impl>(options, std::move(files));
  TM_ASSIGN_OR_RETURN(impl->grpc, GrpcDoor::Start(GrpcOptions(options), impl->core));
  if (!options.http_address.empty()) TM_RETURN_IF_ERROR(impl->StartHttp(options));
  if (!options.admin_address.empty()) TM_RETURN_IF_ERROR(impl->StartAdmin(options));
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

std::string Server::Impl::MetricsText(bool legacy_names) {
  const Serving* serving = core.serving();
  ServerMetrics metrics;
  metrics.model = serving == nullptr ? nullptr : &serving->model;
  metrics.requests = core.request_counts().get();
  metrics.waiting_at_doors = core.waiting_at_doors();
  metrics.legacy_names = legacy_names;
  metrics.process.dropped_log_lines = DroppedLogLines();
  metrics.process.reloads = ReloadCounts();
  metrics.process.version = TRAMONTANE_VERSION;
  metrics.process.draining = core.draining();
  metrics.process.held.queued_input = core.queued_input_bytes();
  metrics.process.held.unread_answers = core.unread_answers().bytes();
  metrics.process.held.sessions = core.sessions().store().bytes();
  if (serving != nullptr) {  // before that the doors may not be there
    metrics.process.connections.grpc = grpc->connections();
    if (gateway != nullptr) metrics.process.connections.http = gateway->connections();
    if (gateway != nullptr) metrics.process.held.request_bodies = gateway->held_body_bytes();
    if (admin != nullptr) metrics.process.connections.admin = admin->connections();
  }
  return ServerMetricsText(metrics);
}

GatewayOptions Server::Impl::OptionsOf(const ServerOptions& options, const std::string& address) {
  GatewayOptions gateway_options;
  gateway_options.address = address;
  gateway_options.version = TRAMONTANE_VERSION;
  gateway_options.cors_origins = options.http_cors_origins;
  gateway_options.hosts = options.http_hosts;
  gateway_options.io_threads = options.http_io_threads;
  gateway_options.handler_threads = options.http_handler_threads;
  gateway_options.limits = options.http_limits;
  gateway_options.unread_answers = &core.unread_answers();
  gateway_options.doorkeeper = options.doorkeeper;
  gateway_options.protect_metrics = options.protect_metrics;
  gateway_options.any_model = options.any_model;
  gateway_options.per_request_metrics = options.per_request_metrics;
  gateway_options.strict_fields = options.strict_fields;
  gateway_options.field_limits = options.field_limits;
  gateway_options.http_counts = http_counts;
  gateway_options.request_counts = core.request_counts();
  gateway_options.metrics = [this, legacy = options.legacy_metrics] { return MetricsText(legacy); };
  gateway_options.request_log = options.request_log;
  return gateway_options;
}

Status Server::Impl::StartHttp(const ServerOptions& options) {
  GatewayOptions http_options = OptionsOf(options, options.http_address);
  http_options.tls = options.tls;
  TM_ASSIGN_OR_RETURN(gateway, Gateway::Start(std::move(http_options), client));
  return {};
}

// What /debug/* tells is for whoever sits at this machine, or has a key for it.
Status Server::Impl::StartAdmin(const ServerOptions& options) {
  GatewayOptions admin_options = OptionsOf(options, options.admin_address);
  TM_ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(options.admin_address));
  admin_options.is_admin_door = true;
  admin_options.io_threads = admin_options.handler_threads = 1;
  const bool has_keys = options.doorkeeper != nullptr && options.doorkeeper->has_admin_keys();
  if (IsLoopback(where.host) || has_keys) {
    admin_options.trace = [this] { return core.StartTrace(); };
    admin_options.kv_tables = [this](RpcError* refusal) { return core.AskKvTables(refusal); };
    admin_options.live_requests = [this](RpcError* refusal) { return core.AskLiveRequests(refusal); };
  }
  TM_ASSIGN_OR_RETURN(admin, Gateway::Start(std::move(admin_options), client));
  return {};
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { Stop(); }

void Server::Serve(const ServedModel& model) {
  impl_->core.Serve(model);
  impl_->grpc->SetServing(true);
}

const std::string& Server::grpc_address() const { return impl_->grpc->address(); }

std::string Server::http_address() const {
  return impl_->gateway == nullptr ? "" : impl_->gateway->address();
}

std::string Server::admin_address() const { return impl_->admin == nullptr ? "" : impl_->admin->address(); }

std::unique_ptr<TraceText> Server::StartTrace() { return impl_->core.StartTrace(); }

InferenceClient& Server::client() { return impl_->client; }

void Server::Leave() {
  impl_->grpc->SetServing(false);
  for (Gateway* door : {impl_->gateway.get(), impl_->admin.get()}) {
    if (door != nullptr) door->Leave();
  }
}

// The doors drain together: what came over HTTP counts as open until its last byte is written.
bool Server::Drain(int64_t timeout_ns) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
  impl_->grpc->SetServing(false);
  if (impl_->admin != nullptr) impl_->admin->Leave();
  impl_->core.StartDraining();
  const bool http_drained = impl_->gateway == nullptr || impl_->gateway->Drain(timeout_ns);
  const std::chrono::nanoseconds left = std::max(0ns, end - std::chrono::steady_clock::now());
  return impl_->core.WaitForStreams(left.count()) && http_drained;
}

// What is open is told why it ends; whoever does not read that in time is hung up on. Then nobody brings new
// work, and only what workers hold uses the model: it is waited for.
void Server::Stop() {
  if (impl_->grpc == nullptr) return;
  impl_->core.StopCalls();
  const bool told = Drain(kEndingGrace.count());
  if (impl_->gateway != nullptr) impl_->gateway->Stop();
  if (impl_->admin != nullptr) impl_->admin->Stop();
  impl_->grpc->Stop(told ? kShutdownGrace : 0ms);
  impl_->grpc = nullptr;
  impl_->core.workers().WaitIdle();
  impl_->core.compilers().WaitIdle();
}

}  // namespace tramontane
