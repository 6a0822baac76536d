// EngineRpc: what calls of the engine have in common at this door: from the message to a worker, from the
// engine's output thread to a writer, and the end of one that is refused.
//
//   waiting for a worker (Read) -> submitted -> its turns (TakeTurn) -> ended (status given to gRPC)
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "server/base/worker_pool.h"
#include "server/call/prompt_text.h"
#include "server/core/served_call.h"
#include "server/grpc/raw_call.h"

namespace tramontane {

class EngineRpc : public RawCall {
 public:
  EngineRpc(GrpcCalls& calls, grpc::GenericCallbackServerContext* context, InferenceCore& core,
            WorkerPool& writers)
      : RawCall(calls, context),
        core_(core),
        served_(core, caller(), OptionsOf(*context)),
        writers_(writers) {}

 protected:
  // On a worker: parses, checks and submits, with OnReady() to be told by. Not OK: nothing was submitted.
  virtual RpcError Read(const grpc::ByteBuffer& bytes) = 0;
  // On a writer, when there is something to take.
  virtual void TakeTurn() = 0;
  // Before the status of a refusal goes to gRPC.
  virtual void NoteRefused() {}

  // Calls TakeTurn on a writer; may be called after the call's end. One turn of a call waits at a time.
  std::function<void()> OnReady();
  // `work` again, on a worker of the kind that the request needs.
  RpcError SubmitAgain(const v1::GenerateRequest& request, std::function<RpcError()> work);
  void EndRefused(const RpcError& error);
  // For the log: what is asked for.
  template <typename Request>
  void NoteRequest(const Request& request) {
    model_ = request.model().substr(0, kMaxLoggedFieldBytes);
    if (calls_.log.prompts) prompt_ = PromptText(request, kMaxLoggedPromptBytes);
  }

  InferenceCore& core_;
  ServedCall served_;

 private:
  void OnMessage(const grpc::ByteBuffer& bytes) final;
  void OnCancel() final { served_.Cancel(); }
  void Describe(RequestLine* line) final;
  void OnRefused(const RpcError& refusal) final { core_.NoteRefused(caller(), refusal); }

  std::shared_ptr<EngineRpc> Self() { return std::static_pointer_cast<EngineRpc>(shared_from_this()); }
  void ScheduleTurn();                                      // output thread
  void GiveWay() { EndRefused(core_.WorkersBusyError()); }  // to another caller's work

  WorkerPool& writers_;
  std::atomic<bool> turn_scheduled_{false};
  std::string model_, prompt_;  // for the log
};

}  // namespace tramontane
