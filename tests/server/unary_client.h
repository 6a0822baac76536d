// UnaryClient: the calls of tramontane.v1.Inference that have one answer, blocking.
// Any thread; calls may overlap.
#pragma once

#include <memory>
#include <string>

#include "kernels/core/status.h"
#include "tramontane/v1/inference.grpc.pb.h"

namespace tramontane {

class UnaryClient {
 public:
  explicit UnaryClient(const std::string& address);  // "127.0.0.1:50051"; connects at the first call

  // The status is the call's; its field is the one at fault.
  StatusOr<v1::ScoreCandidatesResponse> ScoreCandidates(const v1::ScoreCandidatesRequest& request);
  StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request);
  StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request);
  StatusOr<v1::RenderChatResponse> RenderChat(const v1::RenderChatRequest& request);
  StatusOr<v1::AbortResponse> Abort(const v1::AbortRequest& request);
  StatusOr<v1::GetModelResponse> GetModel(const v1::GetModelRequest& request = {});
  StatusOr<v1::GetServerInfoResponse> GetServerInfo();
  StatusOr<v1::GetLoadResponse> GetLoad();

 private:
  template <typename Request, typename Response>
  using Method = grpc::Status (v1::Inference::Stub::*)(grpc::ClientContext*, const Request&, Response*);
  template <typename Request, typename Response>
  StatusOr<Response> Call(Method<Request, Response> method, const Request& request);

  std::unique_ptr<v1::Inference::Stub> stub_;
};

}  // namespace tramontane
