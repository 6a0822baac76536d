#include "server/grpc/score_call.h"

#include "server/grpc/raw_message.h"
#include "server/grpc/served_status.h"

namespace tramontane {

RpcError ScoreCall::Read(const grpc::ByteBuffer& bytes) {
  v1::ScoreCandidatesRequest proto;
  if (RpcError error = ParseMessage(bytes, &proto); !error.ok()) return error;
  NoteRequest(proto);
  if (RpcError error = served_.Admit(proto, OnReady(), &scores_.lengths); !error.ok()) return error;
  {
    std::lock_guard lock(mutex_);
    admitted_ = true;
  }
  TakeTurn();
  return {};
}

void ScoreCall::TakeTurn() {
  RpcError outcome;
  {
    std::lock_guard lock(mutex_);
    if (!admitted_ || ended_) return;
    const InferenceEvents taken = served_.Take();
    for (const v1::GenerateResponse& event : taken.events) scores_.Note(event);
    if (!taken.done) return;
    ended_ = true;
    outcome = taken.outcome;
  }
  if (outcome.ok()) outcome = HoldAnswer(scores_.answer);
  if (!outcome.ok()) return EndRefused(outcome);
  AddServedMetadata(served_, *context_);
  FinishWith(scores_.answer, EndServed(outcome, served_, *context_));
}

}  // namespace tramontane
