#include "server/remote/grpc_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "server/remote/from_grpc_status.h"
#include "tramontane/v1/inference.grpc.pb.h"

namespace tramontane {

struct GrpcClient::Impl {
  std::unique_ptr<v1::Inference::Stub> stub;

  template <typename RequestProto, typename ResponseProto>
  using Method = grpc::Status (v1::Inference::Stub::*)(grpc::ClientContext*, const RequestProto&,
                                                       ResponseProto*);

  template <typename RequestProto, typename ResponseProto>
  StatusOr<ResponseProto> Call(Method<RequestProto, ResponseProto> method, const RequestProto& request) {
    grpc::ClientContext context;
    ResponseProto response;
    const grpc::Status status = (stub.get()->*method)(&context, request, &response);
    if (!status.ok()) return ShortFromGrpcStatus(status);
    return response;
  }
};

GrpcClient::GrpcClient(const std::string& address) : impl_(std::make_unique<Impl>()) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // prompt logprobs and tokenised texts can be long
  impl_->stub = v1::Inference::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

GrpcClient::~GrpcClient() = default;

Status GrpcClient::Generate(const v1::GenerateRequest& request, const OnEvent& on_event, int64_t timeout_ms) {
  grpc::ClientContext context;
  if (timeout_ms > 0) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  }
  const auto reader = impl_->stub->Generate(&context, request);
  v1::GenerateResponse event;
  bool wanted = true;
  while (reader->Read(&event)) {
    if (!wanted) continue;  // what was on its way when the call was cancelled
    wanted = on_event(event);
    if (!wanted) context.TryCancel();
  }
  return ShortFromGrpcStatus(reader->Finish());
}

StatusOr<v1::TokenizeResponse> GrpcClient::Tokenize(const v1::TokenizeRequest& request) {
  return impl_->Call(&v1::Inference::Stub::Tokenize, request);
}
StatusOr<v1::DetokenizeResponse> GrpcClient::Detokenize(const v1::DetokenizeRequest& request) {
  return impl_->Call(&v1::Inference::Stub::Detokenize, request);
}
StatusOr<v1::RenderChatResponse> GrpcClient::RenderChat(const v1::RenderChatRequest& request) {
  return impl_->Call(&v1::Inference::Stub::RenderChat, request);
}
StatusOr<v1::AbortResponse> GrpcClient::Abort(const v1::AbortRequest& request) {
  return impl_->Call(&v1::Inference::Stub::Abort, request);
}
StatusOr<v1::GetModelResponse> GrpcClient::GetModel(const v1::GetModelRequest& request) {
  return impl_->Call(&v1::Inference::Stub::GetModel, request);
}
StatusOr<v1::GetServerInfoResponse> GrpcClient::GetServerInfo() {
  return impl_->Call(&v1::Inference::Stub::GetServerInfo, v1::GetServerInfoRequest());
}
StatusOr<v1::GetLoadResponse> GrpcClient::GetLoad() {
  return impl_->Call(&v1::Inference::Stub::GetLoad, v1::GetLoadRequest());
}

}  // namespace tramontane
