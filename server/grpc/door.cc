#include "server/grpc/door.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "server/grpc/acceptor.h"
#include "server/grpc/door_credentials.h"
#include "server/grpc/health.h"
#include "server/grpc/inference_service.h"
#include "server/grpc/library_logs.h"
#include "server/grpc/listener.h"

namespace tramontane {
namespace {

constexpr char kServiceName[] = "tramontane.v1.Inference";

constexpr int kSecondMs = 1000;
constexpr int kMinuteMs = 60 * kSecondMs;
constexpr int kMaxMetadataBytes = 16 << 10;
constexpr int kHandshakeMs = 10 * kSecondMs;  // of a new connection, to its first settings

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
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
}

// What messages of all calls may take while they come and until they are parsed. Where that is spent, gRPC
// ends the calls that hold it, with RESOURCE_EXHAUSTED. gRPC would unpack what is compressed to whatever is
// in it: calls do that themselves (ParseMessage), for gzip. Its own bound of a connection's calls holds for
// clients that say they know it; CallTable has one for the others.
void BoundMessages(const GrpcDoorOptions& options, grpc::ResourceQuota& quota, grpc::ServerBuilder* builder) {
  quota.Resize(static_cast<size_t>(options.memory_bytes));
  builder->SetResourceQuota(quota);
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->SetMaxSendMessageSize(-1);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams + kSpareCalls);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
}

CallTableOptions CallsOptions(const GrpcDoorOptions& options) {
  return {.max_of_address = options.max_streams + kSpareCalls,
          .read_timeout = options.read_timeout,
          .write_timeout = options.write_timeout};
}

GrpcConnectionLimits LimitsOf(const GrpcDoorOptions& options) {
  return {.max_connections = options.max_connections, .max_arriving_bytes = options.memory_bytes};
}

}  // namespace

struct GrpcDoor::Impl {
  Impl(const GrpcDoorOptions& options, InferenceCore& core)
      : doorkeeper(options.doorkeeper != nullptr ? options.doorkeeper : std::make_shared<const Doorkeeper>()),
        tls(options.tls),
        open(CallsOptions(options), core.unread_answers()),
        connections(LimitsOf(options)),
        request_log(options.request_log),
        service({.writer_threads = options.writer_threads,
                 .max_streams = options.max_streams,
                 .reflection = options.reflection},
                core, calls, health) {}

  const std::shared_ptr<const Doorkeeper> doorkeeper;
  const std::shared_ptr<const TlsFiles> tls;  // gRPC looks into its files
  CallTable open;
  GrpcConnections connections;
  const RequestLog request_log;
  GrpcCalls calls{open, connections, *doorkeeper, request_log};
  Health health;
  InferenceService service;
  grpc::ResourceQuota quota{"tramontane"};  // keeps gRPC up from here on; it does not like to begin twice
  std::string address;
  std::unique_ptr<grpc::Server> grpc;  // these last: they use all of the above
  std::unique_ptr<GrpcAcceptor> acceptor;
};

StatusOr<std::unique_ptr<GrpcDoor>> GrpcDoor::Start(const GrpcDoorOptions& options, InferenceCore& core) {
  RouteLibraryLogs();
  TM_ASSIGN_OR_RETURN(std::unique_ptr<GrpcListener> listener, GrpcListener::Open(options.address));
  auto impl = std::make_unique<Impl>(options, core);
  impl->address = listener->address();
  impl->health.Set("", HealthStatus::SERVING);
  impl->health.Set(kServiceName, HealthStatus::NOT_SERVING);
  grpc::ServerBuilder builder;
  SetConnectionArguments(&builder);
  BoundMessages(options, impl->quota, &builder);
  builder.RegisterCallbackGenericService(&impl->service);
  using From = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  auto handover =
      builder.experimental().AddExternalConnectionAcceptor(From::FROM_FD, DoorCredentials(options.tls.get()));
  impl->grpc = builder.BuildAndStart();
  if (impl->grpc == nullptr) return Unavailable("grpc_address: gRPC refused " + options.address);
  impl->acceptor = std::make_unique<GrpcAcceptor>(std::move(listener), std::move(handover), impl->calls);
  return std::unique_ptr<GrpcDoor>(new GrpcDoor(std::move(impl)));
}

GrpcDoor::GrpcDoor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GrpcDoor::~GrpcDoor() { Stop({}); }

const std::string& GrpcDoor::address() const { return impl_->address; }

int32_t GrpcDoor::connections() const { return impl_->connections.size(); }

void GrpcDoor::SetServing(bool serving) {
  impl_->health.Set(kServiceName, serving ? HealthStatus::SERVING : HealthStatus::NOT_SERVING);
}

void GrpcDoor::Stop(std::chrono::milliseconds grace) {
  if (impl_->grpc == nullptr) return;
  impl_->acceptor = nullptr;
  impl_->grpc->Shutdown(std::chrono::system_clock::now() + grace);
  impl_->grpc = nullptr;
}

}  // namespace tramontane
