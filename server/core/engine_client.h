// EngineClient: the InferenceClient of this process: what gRPC does with a call, without gRPC. Checks,
// limits, request ids, draining and log lines are InferenceCore's, so both doors have the same.
//
// Any thread. Which thread does what:
//   the caller's       Open: is there a model, is it draining, is there room; then to the worker pool
//   worker pool        checks, tokenises, submits; the unary calls, and their callbacks
//   engine's output    calls `on_ready`, which must do no more than post to the gateway's own thread
//   the caller's       Take: messages from what the TokenStream holds, joined
#pragma once

#include <functional>
#include <memory>

#include "server/core/inference_client.h"
#include "server/core/inference_core.h"

namespace tramontane {

class EngineClient final : public InferenceClient {
 public:
  explicit EngineClient(InferenceCore& core) : core_(core) {}  // borrowed; outlives it and its calls

  std::shared_ptr<InferenceCall> Generate(v1::GenerateRequest request, const InferenceCallOptions& options,
                                          std::function<void()> on_ready, RpcError* refusal) override;

  // On the worker pool.
  void Tokenize(v1::TokenizeRequest request, Done<v1::TokenizeResponse> done) override;
  void Detokenize(v1::DetokenizeRequest request, Done<v1::DetokenizeResponse> done) override;
  void RenderChat(v1::RenderChatRequest request, Done<v1::RenderChatResponse> done) override;

  void SaveSession(v1::SaveSessionRequest request, Done<v1::SaveSessionResponse> done) override;
  void RestoreSession(v1::RestoreSessionRequest request, Done<v1::RestoreSessionResponse> done) override;

  // At once, before they return.
  void GetModel(v1::GetModelRequest request, Done<v1::GetModelResponse> done) override;
  void GetLoad(Done<v1::GetLoadResponse> done) override;
  void ListSessions(Done<v1::ListSessionsResponse> done) override;
  void DeleteSession(v1::DeleteSessionRequest request, Done<v1::DeleteSessionResponse> done) override;
  bool ready() const override { return core_.Health().ok() && !core_.draining(); }
  RpcError health() const override { return core_.Health(); }

 private:
  template <typename Request, typename Response>
  using Converter = RpcError (ProtoConverter::*)(const Request&, Response*) const;

  template <typename Request, typename Response>
  using CoreCall = RpcError (InferenceCore::*)(const Serving&, const Request&, Response*);

  template <typename Request, typename Response>
  void OnWorker(Request request, const Done<Response>& done, CoreCall<Request, Response> call);
  template <typename Request, typename Response>
  void OnWorker(Request request, const Done<Response>& done, Converter<Request, Response> convert);
  template <typename Response, typename Answer>
  void AtOnce(const Done<Response>& done, const Answer& answer) const;

  InferenceCore& core_;
};

}  // namespace tramontane
