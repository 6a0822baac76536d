// GrpcClient: a thin, blocking client of tramontane.v1.Inference, for `tramontane generate` and tests.
// Any thread; calls may overlap.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/core/status.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

class GrpcClient {
 public:
  explicit GrpcClient(const std::string& address);  // "127.0.0.1:50051"; connects at the first call
  ~GrpcClient();

  // Streams a request: `on_event` is called for each event, in order, on this thread; false from it cancels
  // the call. `timeout_ms` is the call's deadline; 0: none. The status is the call's; its field is the first
  // one at fault.
  using OnEvent = std::function<bool(const v1::GenerateResponse& event)>;
  Status Generate(const v1::GenerateRequest& request, const OnEvent& on_event, int64_t timeout_ms = 0);

  StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request);
  StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request);
  StatusOr<v1::RenderChatResponse> RenderChat(const v1::RenderChatRequest& request);
  StatusOr<v1::AbortResponse> Abort(const v1::AbortRequest& request);
  StatusOr<v1::GetModelResponse> GetModel(const v1::GetModelRequest& request = {});
  StatusOr<v1::GetServerInfoResponse> GetServerInfo();
  StatusOr<v1::GetLoadResponse> GetLoad();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tramontane
