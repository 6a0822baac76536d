// EngineClient: the InferenceClient of this process: what gRPC does with a call, without gRPC. Checks,
// limits, request ids and draining are InferenceCore's, so both doors have the same.
//
// Any thread. Which thread does what:
//   the caller's       Open: is there a model, is it draining, is there room; then to the worker pool
//   worker pool        checks, tokenises, submits; the unary calls, and their callbacks
//   engine's output    calls `on_ready`, which must do no more than post to the gateway's own thread
//   the caller's       Take: messages from what the TokenStream holds, joined
#pragma once

#include <functional>
#include <memory>

#include "server/call/inference_client.h"
#include "server/core/inference_core.h"

namespace tramontane {

class EngineClient final : public InferenceClient {
 public:
  explicit EngineClient(InferenceCore& core) : core_(core) {}  // borrowed; outlives it and its calls

  std::shared_ptr<InferenceCall> Generate(const Caller& caller, v1::GenerateRequest request,
                                          const InferenceCallOptions& options, std::function<void()> on_ready,
                                          RpcError* refusal) override;

  void NoteUnsent(int64_t change) override { core_.NoteUnsent(change); }

  bool ready() const override { return core_.Health().ok() && !core_.draining(); }
  RpcError health() const override { return core_.Health(); }

 private:
  // On the thread that the call's row says (unary_calls.h).
  void AskUnary(const Caller& caller, std::shared_ptr<const google::protobuf::Message> request,
                std::unique_ptr<google::protobuf::Message> response,
                Done<google::protobuf::Message> done) override;

  InferenceCore& core_;
};

}  // namespace tramontane
