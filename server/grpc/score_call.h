// ScoreCall: one ScoreCandidates call: its one answer is there when its request has ended.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "server/core/candidate_scores.h"
#include "server/core/served_call.h"
#include "server/core/worker_pool.h"
#include "server/grpc/raw_call.h"

namespace tramontane {

class ScoreCall final : public RawCall {
 public:
  ScoreCall(GrpcCalls& calls, grpc::GenericCallbackServerContext* context, InferenceCore& core,
            WorkerPool& writers)
      : RawCall(calls, context),
        core_(core),
        writers_(writers),
        served_(core, caller(), OptionsOf(*context)) {}

 private:
  void OnMessage(const grpc::ByteBuffer& bytes) override;
  void OnCancel() override { served_.Cancel(); }

  std::shared_ptr<ScoreCall> Self() { return std::static_pointer_cast<ScoreCall>(shared_from_this()); }
  RpcError Admit(const grpc::ByteBuffer& bytes);  // worker
  void ScheduleTake();                            // output thread
  void TakeWhatIsThere();                         // writer, or worker
  void EndRefused(const RpcError& error);
  void GiveWay() { EndRefused(core_.WorkersBusyError()); }  // to another caller's work

  InferenceCore& core_;
  WorkerPool& writers_;
  ServedCall served_;

  std::atomic<bool> take_scheduled_{false};
  std::mutex mutex_;  // guards everything below
  bool admitted_ = false;
  bool ended_ = false;
  CandidateScores scores_;
};

}  // namespace tramontane
