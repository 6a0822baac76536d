#include "server/server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <netdb.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <utility>

#include "kernels/core/check.h"
#include "server/access/doorkeeper.h"
#include "server/api/access_log.h"
#include "server/api/gateway.h"
#include "server/base/host_port.h"
#include "server/core/engine_client.h"
#include "server/core/inference_core.h"
#include "server/grpc/inference_service.h"
#include "server/setup/logging.h"
#include "server/setup/reload_watch.h"
#include "server/watch/metrics.h"

namespace tramontane {
namespace {

constexpr char kServiceName[] = "tramontane.v1.Inference";

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kShutdownGrace = 1s;
constexpr std::chrono::nanoseconds kEndingGrace = 3s;  // for what a stop ends to be told so
constexpr int kSecondMs = 1000;
constexpr int kMinuteMs = 60 * kSecondMs;
constexpr int kMaxMetadataBytes = 16 << 10;
// Of a connection beyond max_streams: what is refused is told so, and health and Abort need not wait for a
// stream's end.
constexpr int kSpareStreams = 256;

// What gRPC and protobuf would print on their own goes where our logs go.
void RouteLibraryLogs() {
  static std::once_flag once;
  std::call_once(once, [] {
    gpr_set_log_function([](gpr_log_func_args* args) {
      const auto level =
          args->severity == GPR_LOG_SEVERITY_ERROR ? spdlog::level::warn : spdlog::level::debug;
      spdlog::log(level, "grpc: {}", args->message);
    });
    // protobuf reports here what a caller sent; the caller gets the error, the log need not.
    google::protobuf::SetLogHandler([](google::protobuf::LogLevel level, const char*, int,
                                       const std::string& text) {
      spdlog::log(level == google::protobuf::LOGLEVEL_FATAL ? spdlog::level::critical : spdlog::level::debug,
                  "protobuf: {}", text);
    });
  });
}

// Clients behind load balancers ping while idle; left at its defaults gRPC would hang up on them. Connections
// end after an hour, with time to finish what they carry, so that balanced clients look for new servers.
void SetConnectionArguments(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60 * kSecondMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20 * kSecondMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10 * kSecondMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 30 * kMinuteMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, 60 * kMinuteMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, 120 * kMinuteMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  // Two servers on one port would share its callers; a taken port is an error.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

// What messages of all calls may take while they come and until they are parsed. Where that is spent, gRPC
// ends the calls that hold it, with RESOURCE_EXHAUSTED. Without a bound of a connection's streams one client
// could open calls without end.
void BoundMessages(const ServerOptions& options, grpc::ResourceQuota& quota, grpc::ServerBuilder* builder) {
  quota.Resize(static_cast<size_t>(options.grpc_memory_bytes));
  builder->SetResourceQuota(quota);
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams + kSpareStreams);
}

// gRPC only says that it could not listen; the system, asked for the same address, says why.
std::string ListenFault(const HostPort& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int resolved =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (resolved != 0) return gai_strerror(resolved);
  std::string fault = "gRPC refused it";
  const int fd = socket(found->ai_family, SOCK_STREAM, 0);
  if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) != 0) fault = std::strerror(errno);
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  return fault;
}

bool IsUnixSocket(const std::string& address) { return address.rfind("unix:", 0) == 0; }

// Whether a server listens there. A socket that nobody listens on was left behind.
bool IsListenedOn(const sockaddr_un& address) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const int connected = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const bool is_full = connected != 0 && errno == EAGAIN;  // of others that it has not accepted
  close(fd);
  return connected == 0 || is_full;
}

// What forbids a socket of this machine; "" for nothing. gRPC puts its socket in the place of another
// server's, which nobody reaches from then on, and does not say why where it fails.
std::string UnixSocketFault(const std::string& grpc_address) {
  std::string path = grpc_address.substr(std::strlen("unix:"));
  if (path.starts_with("//")) path = path.substr(2);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  constexpr size_t kMostBytes = sizeof(address.sun_path) - 1;
  if (path.size() > kMostBytes) {
    return "the path has " + std::to_string(path.size()) + " bytes, the most is " +
           std::to_string(kMostBytes);
  }
  path.copy(address.sun_path, kMostBytes);
  struct stat found{};
  if (lstat(path.c_str(), &found) == 0 && !S_ISSOCK(found.st_mode)) return "what is there is no socket";
  if (IsListenedOn(address)) return std::strerror(EADDRINUSE);
  const std::string folder = std::filesystem::path(path).parent_path();
  return access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0 ? "" : std::strerror(errno);
}

InferenceCoreOptions CoreOptions(const ServerOptions& options, std::shared_ptr<SessionFiles> files) {
  return {.workers = {.threads = options.worker_threads, .max_queued = options.max_queued_work},
          .compiler_threads = options.compiler_threads,
          .max_unread_answer_bytes = options.max_unread_answer_bytes,
          .max_streams = options.max_streams,
          .sessions = options.sessions,
          .session_files = std::move(files),
          .step_timeout = options.step_timeout};
}

}  // namespace

struct Server::Impl {
  Impl(const ServerOptions& options, std::shared_ptr<SessionFiles> files)
      : core(CoreOptions(options, std::move(files))),
        client(core),
        service({.writer_threads = options.writer_threads, .max_streams = options.max_streams}, core) {}

  InferenceCore core;
  EngineClient client;
  InferenceService service;                 // outlives `grpc`
  grpc::ResourceQuota quota{"tramontane"};  // keeps gRPC up from here on; it does not like to begin twice
  std::unique_ptr<grpc::Server> grpc;
  std::string address;
  std::unique_ptr<Gateway> gateway;  // null: no HTTP
  std::unique_ptr<Gateway> admin;    // null: no admin door

  Status StartGrpc(const ServerOptions& options);
  GatewayOptions OptionsOf(const ServerOptions& options, const std::string& address);
  Status StartHttp(const ServerOptions& options);
  Status StartAdmin(const ServerOptions& options);
  void SetServing(bool serving) { grpc->GetHealthCheckService()->SetServingStatus(kServiceName, serving); }
};

StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  std::shared_ptr<SessionFiles> files;
  if (!options.session_dir.empty()) {
    TM_ASSIGN_OR_RETURN(files, SessionFiles::Open(options.session_dir));
  }
  auto impl = std::make_unique<Impl>(options, std::move(files));
  TM_RETURN_IF_ERROR(impl->StartGrpc(options));
  if (!options.http_address.empty()) TM_RETURN_IF_ERROR(impl->StartHttp(options));
  if (!options.admin_address.empty()) TM_RETURN_IF_ERROR(impl->StartAdmin(options));
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Status Server::Impl::StartGrpc(const ServerOptions& options) {
  RouteLibraryLogs();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  const auto refused = [&](const std::string& why) {
    return Unavailable("grpc_address: cannot listen on " + options.grpc_address + ": " + why);
  };
  HostPort where;
  if (IsUnixSocket(options.grpc_address)) {
    const std::string fault = UnixSocketFault(options.grpc_address);
    if (!fault.empty()) return refused(fault);
  } else {
    auto parsed = ParseHostPort(options.grpc_address);
    if (!parsed.ok()) return InvalidArgument("grpc_address " + parsed.status().message());
    where = std::move(*parsed);
  }
  grpc::ServerBuilder builder;
  SetConnectionArguments(&builder);
  BoundMessages(options, quota, &builder);
  builder.SetMaxSendMessageSize(-1);
  builder.RegisterService(service.grpc_service());
  int port = 0;
  builder.AddListeningPort(options.grpc_address, grpc::InsecureServerCredentials(), &port);
  grpc = builder.BuildAndStart();
  if (grpc == nullptr) {
    return refused(IsUnixSocket(options.grpc_address) ? "gRPC refused it" : ListenFault(where));
  }
  where.port = static_cast<uint16_t>(port);
  address = IsUnixSocket(options.grpc_address) ? options.grpc_address : ToString(where);
  SetServing(false);
  return {};
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
  gateway_options.strict_fields = options.strict_fields;
  gateway_options.field_limits = options.field_limits;
  gateway_options.metrics = [this] {
    const Serving* serving = core.serving();
    return serving == nullptr
               ? ""
               : ServerMetricsText(serving->model,
                                   {.dropped_log_lines = DroppedLogLines(), .reloads = ReloadCounts()},
                                   core.waiting_at_doors());
  };
  gateway_options.on_answer = LogAnswer;
  return gateway_options;
}

Status Server::Impl::StartHttp(const ServerOptions& options) {
  TM_ASSIGN_OR_RETURN(gateway, Gateway::Start(OptionsOf(options, options.http_address), client));
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
  }
  TM_ASSIGN_OR_RETURN(admin, Gateway::Start(std::move(admin_options), client));
  return {};
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { Stop(); }

void Server::Serve(const ServedModel& model) {
  impl_->core.Serve(model);
  impl_->SetServing(true);
}

const std::string& Server::grpc_address() const { return impl_->address; }

std::string Server::http_address() const {
  return impl_->gateway == nullptr ? "" : impl_->gateway->address();
}

std::string Server::admin_address() const { return impl_->admin == nullptr ? "" : impl_->admin->address(); }

std::unique_ptr<TraceText> Server::StartTrace() { return impl_->core.StartTrace(); }

InferenceClient& Server::client() { return impl_->client; }

void Server::Leave() {
  impl_->SetServing(false);
  for (Gateway* door : {impl_->gateway.get(), impl_->admin.get()}) {
    if (door != nullptr) door->Leave();
  }
}

// The doors drain together: what came over HTTP counts as open until its last byte is written.
bool Server::Drain(int64_t timeout_ns) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
  impl_->SetServing(false);
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
  impl_->grpc->Shutdown(std::chrono::system_clock::now() + (told ? kShutdownGrace : 0ms));
  impl_->grpc = nullptr;
  impl_->core.workers().WaitIdle();
  impl_->core.compilers().WaitIdle();
}

}  // namespace tramontane
