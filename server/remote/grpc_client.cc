#include "server/remote/grpc_client.h"

#include <grpcpp/grpcpp.h>

#include "server/remote/from_grpc_status.h"
#include "tramontane/v1/inference.grpc.pb.h"

namespace tramontane {

struct GrpcClient::Impl {
  std::unique_ptr<v1::Inference::Stub> stub;
};

GrpcClient::GrpcClient(const std::string& address) : impl_(std::make_unique<Impl>()) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // prompt logprobs can be long
  impl_->stub = v1::Inference::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

GrpcClient::~GrpcClient() = default;

Status GrpcClient::Generate(const v1::GenerateRequest& request, const OnEvent& on_event) {
  grpc::ClientContext context;
  const auto reader = impl_->stub->Generate(&context, request);
  v1::GenerateResponse event;
  bool wanted = true;
  while (reader->Read(&event)) {
    if (!wanted) continue;  // what was on its way when the call was cancelled
    wanted = on_event(event);
    if (!wanted) context.TryCancel();
  }
  return ToStatus(FromGrpcStatus(reader->Finish()));
}

}  // namespace tramontane
