// ScoreCall: one ScoreCandidates call: its one answer is there when its request has ended.
#pragma once

#include <grpcpp/grpcpp.h>

#include <mutex>

#include "server/core/candidate_scores.h"
#include "server/grpc/engine_rpc.h"

namespace tramontane {

class ScoreCall final : public EngineRpc {
 public:
  using EngineRpc::EngineRpc;

 private:
  RpcError Read(const grpc::ByteBuffer& bytes) override;
  void TakeTurn() override;

  std::mutex mutex_;  // guards everything below
  bool admitted_ = false;
  bool ended_ = false;
  CandidateScores scores_;
};

}  // namespace tramontane
