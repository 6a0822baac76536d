// GenerateCall: one Generate call, from its bytes to its status.
//
//   waiting for a worker -> submitted -> admitted (initial metadata sent) -> ended (status given to gRPC)
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "server/core/served_call.h"
#include "server/core/worker_pool.h"
#include "server/grpc/raw_call.h"

namespace tramontane {

class GenerateCall final : public RawCall {
 public:
  GenerateCall(GrpcCalls& calls, grpc::GenericCallbackServerContext* context, InferenceCore& core,
               WorkerPool& writers)
      : RawCall(calls, context),
        core_(core),
        writers_(writers),
        served_(core, caller(), OptionsOf(*context)) {}

 private:
  void OnMessage(const grpc::ByteBuffer& bytes) override;
  void OnCancel() override { served_.Cancel(); }
  void OnWriteDone(bool ok) override;

  std::shared_ptr<GenerateCall> Self() { return std::static_pointer_cast<GenerateCall>(shared_from_this()); }
  RpcError Read(const grpc::ByteBuffer& bytes);      // worker
  RpcError Admit(const v1::GenerateRequest& proto);  // worker

  void ScheduleWrite();  // output thread
  void WriteNext();      // writer, or gRPC's thread
  void TakeEvents();     // holds mutex_
  void DropEvents();     // holds mutex_
  void EndRefused(const RpcError& error);
  void GiveWay() { EndRefused(core_.WorkersBusyError()); }  // to another caller's work

  InferenceCore& core_;
  WorkerPool& writers_;
  ServedCall served_;

  std::atomic<bool> write_scheduled_{false};
  std::mutex mutex_;  // guards everything below
  bool admitted_ = false;
  bool reader_gone_ = false;
  bool write_in_flight_ = false;
  bool ended_ = false;
  grpc::ByteBuffer writing_;                 // owned by gRPC while write_in_flight_
  bool writing_content_ = false;             // in it
  std::deque<v1::GenerateResponse> outbox_;  // what was last taken, and is not written
  std::optional<RpcError> outcome_;          // known with the last events
};

}  // namespace tramontane
