#include "server/remote/grpc_client.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <future>
#include <utility>
#include <vector>

#include "server/remote/channel_credentials.h"
#include "server/remote/event_check.h"
#include "server/remote/from_grpc_status.h"
#include "tramontane/v1/inference.grpc.pb.h"

namespace tramontane {

struct GrpcClient::Impl {
  std::shared_ptr<grpc::Channel> channel;
  std::string api_key;
  std::unique_ptr<v1::Inference::Stub> stub;
};

GrpcClient::GrpcClient(const std::string& address, std::string api_key, const ClientTls& tls)
    : impl_(std::make_unique<Impl>()) {
  impl_->api_key = std::move(api_key);
  impl_->channel = grpc::CreateChannel(address, CredentialsFor(tls));
  impl_->stub = v1::Inference::NewStub(impl_->channel);
}

GrpcClient::~GrpcClient() = default;

Status GrpcClient::Generate(const v1::GenerateRequest& request, const OnEvent& on_event) {
  grpc::ClientContext context;
  if (!impl_->api_key.empty()) context.AddMetadata("authorization", "Bearer " + impl_->api_key);
  const auto reader = impl_->stub->Generate(&context, request);
  v1::GenerateResponse event;
  EventCheck check(request, /*max_started_bytes=*/0);
  std::string fault;
  bool wanted = true;
  while (reader->Read(&event)) {
    if (!wanted) continue;  // what was on its way when the call was cancelled
    fault = check.FaultOf(event);
    wanted = fault.empty() && on_event(event);
    if (!wanted) context.TryCancel();
  }
  const grpc::Status status = reader->Finish();
  if (status.ok()) fault = check.FaultOfEnd();
  if (!fault.empty()) return Internal("the server answers what it may not: " + fault);
  return ToStatus(FromGrpcStatus(status));
}

// grpc.health.v1.Health/Check, whose messages are one field each: an empty request asks for the whole server,
// and an answer is SERVING where its field 1 is 1.
Status GrpcClient::CheckHealth(bool ready, int timeout_ms) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  grpc::ByteBuffer request(nullptr, 0), response;
  grpc::GenericStub stub(impl_->channel);
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request, &response,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  const grpc::Status status = done.get_future().get();
  if (!status.ok()) return Unavailable(status.error_message());
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (response.Dump(&slices).ok()) {
    for (const grpc::Slice& slice : slices) bytes.append(slice.begin(), slice.end());
  }
  constexpr char kServing[] = {0x08, 0x01};
  const bool is_serving = bytes == std::string(kServing, sizeof kServing);
  return is_serving || !ready ? Status() : Unavailable("it is not serving");
}

}  // namespace tramontane
