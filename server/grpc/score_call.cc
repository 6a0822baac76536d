#include "server/grpc/score_call.h"

#include "kernels/core/check.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/raw_message.h"
#include "server/grpc/served_status.h"

namespace tramontane {

void ScoreCall::OnMessage(const grpc::ByteBuffer& bytes) {
  if (const RpcError error = served_.Open(); !error.ok()) return EndRefused(error);
  const bool taken = core_.workers().TrySubmit(
      UnpackedBytes(bytes), caller().identity,
      [self = Self(), bytes] {
        if (const RpcError error = self->Admit(bytes); !error.ok()) self->EndRefused(error);
      },
      [self = Self()] { self->GiveWay(); });
  if (!taken) EndRefused(core_.WorkersBusyError());
}

RpcError ScoreCall::Admit(const grpc::ByteBuffer& bytes) {
  if (RpcError error = served_.CheckIsWanted(); !error.ok()) return error;
  v1::ScoreCandidatesRequest proto;
  if (RpcError error = ParseMessage(bytes, &proto); !error.ok()) return error;
  const std::weak_ptr<ScoreCall> weak = Self();
  RpcError error = served_.Admit(
      proto,
      [weak] {
        if (const std::shared_ptr<ScoreCall> call = weak.lock()) call->ScheduleTake();
      },
      &scores_.lengths);
  if (!error.ok()) return error;
  {
    std::lock_guard lock(mutex_);
    admitted_ = true;
  }
  TakeWhatIsThere();
  return {};
}

// As GenerateCall::ScheduleWrite: one entry of a call at a time.
void ScoreCall::ScheduleTake() {
  if (take_scheduled_.exchange(true)) return;
  const bool taken = writers_.TrySubmit(0, [self = Self()] {
    self->take_scheduled_ = false;
    self->TakeWhatIsThere();
  });
  TM_CHECK(taken, "the writers' queue is full");
}

void ScoreCall::TakeWhatIsThere() {
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
  AddIdsToInitialMetadata(served_, *context_);
  FinishWith(scores_.answer, EndServed(outcome, served_, *context_));
}

void ScoreCall::EndRefused(const RpcError& error) {
  AddIdsToInitialMetadata(served_, *context_);
  Finish(EndServed(error, served_, *context_));
}

}  // namespace tramontane
