#include "tests/server/unary_client.h"

#include <grpcpp/grpcpp.h>

#include "server/remote/from_grpc_status.h"

namespace tramontane {

UnaryClient::UnaryClient(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // tokenised texts can be long
  stub_ = v1::Inference::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

template <typename Request, typename Response>
StatusOr<Response> UnaryClient::Call(Method<Request, Response> method, const Request& request) {
  grpc::ClientContext context;
  Response response;
  const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
  if (!status.ok()) return ToStatus(FromGrpcStatus(status));
  return response;
}

StatusOr<v1::ScoreCandidatesResponse> UnaryClient::ScoreCandidates(
    const v1::ScoreCandidatesRequest& request) {
  return Call(&v1::Inference::Stub::ScoreCandidates, request);
}
StatusOr<v1::TokenizeResponse> UnaryClient::Tokenize(const v1::TokenizeRequest& request) {
  return Call(&v1::Inference::Stub::Tokenize, request);
}
StatusOr<v1::DetokenizeResponse> UnaryClient::Detokenize(const v1::DetokenizeRequest& request) {
  return Call(&v1::Inference::Stub::Detokenize, request);
}
StatusOr<v1::RenderChatResponse> UnaryClient::RenderChat(const v1::RenderChatRequest& request) {
  return Call(&v1::Inference::Stub::RenderChat, request);
}
StatusOr<v1::AbortResponse> UnaryClient::Abort(const v1::AbortRequest& request) {
  return Call(&v1::Inference::Stub::Abort, request);
}
StatusOr<v1::GetModelResponse> UnaryClient::GetModel(const v1::GetModelRequest& request) {
  return Call(&v1::Inference::Stub::GetModel, request);
}
StatusOr<v1::GetServerInfoResponse> UnaryClient::GetServerInfo() {
  return Call(&v1::Inference::Stub::GetServerInfo, v1::GetServerInfoRequest());
}
StatusOr<v1::GetLoadResponse> UnaryClient::GetLoad() {
  return Call(&v1::Inference::Stub::GetLoad, v1::GetLoadRequest());
}

}  // namespace tramontane
