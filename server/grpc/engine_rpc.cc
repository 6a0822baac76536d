#include "server/grpc/engine_rpc.h"

#include <utility>

#include "kernels/core/check.h"
#include "server/grpc/raw_message.h"
#include "server/grpc/served_status.h"

namespace tramontane {

void EngineRpc::OnMessage(const grpc::ByteBuffer& bytes) {
  if (const RpcError error = served_.Open(); !error.ok()) return EndRefused(error);
  auto read = [self = Self(), bytes] {
    RpcError error = self->served_.CheckIsWanted();
    if (error.ok()) error = self->Read(bytes);
    if (!error.ok()) self->EndRefused(error);
  };
  auto give_way = [self = Self()] { self->GiveWay(); };
  const bool taken = core_.workers().TrySubmit({.caller = caller().identity,
                                                .bytes = UnpackedBytes(bytes),
                                                .run = std::move(read),
                                                .give_way = std::move(give_way)});
  if (!taken) EndRefused(core_.WorkersBusyError());
}

RpcError EngineRpc::SubmitAgain(const v1::GenerateRequest& request, std::function<RpcError()> work) {
  const bool taken = core_.SubmitCall(
      request, served_.caller(),
      [self = Self(), work = std::move(work)] {
        RpcError error = self->served_.CheckIsWanted();
        if (error.ok()) error = work();
        if (!error.ok()) self->EndRefused(error);
      },
      [self = Self()] { self->GiveWay(); });
  return taken ? RpcError() : core_.WorkersBusyError();
}

std::function<void()> EngineRpc::OnReady() {
  return [weak = std::weak_ptr<EngineRpc>(Self())] {
    if (const std::shared_ptr<EngineRpc> call = weak.lock()) call->ScheduleTurn();
  };
}

// So the writers' queue, which has room for every open call, cannot overflow.
void EngineRpc::ScheduleTurn() {
  if (turn_scheduled_.exchange(true)) return;
  const bool taken = writers_.TrySubmit(0, [self = Self()] {
    self->turn_scheduled_ = false;
    self->TakeTurn();
  });
  TM_CHECK(taken, "the writers' queue is full");
}

void EngineRpc::EndRefused(const RpcError& error) {
  NoteRefused();
  AddServedMetadata(served_, *context_);
  if (served_.request_id().empty()) context_->AddInitialMetadata(kRequestIdKey, request_id());
  Finish(EndServed(error, served_, *context_));
}

void EngineRpc::Describe(RequestLine* line) {
  line->generates = true;
  line->model = model_;
  line->prompt = prompt_;
  served_.Describe(line);
}

}  // namespace tramontane
