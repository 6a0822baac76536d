#include "server/grpc/generate_call.h"

#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "server/grpc/message_parts.h"
#include "server/grpc/raw_message.h"
#include "server/grpc/served_status.h"

namespace tramontane {

// Only now it is known what kind of work this is: where a constraint may have to be compiled, it queues once
// more, for that.
RpcError GenerateCall::Read(const grpc::ByteBuffer& bytes) {
  v1::GenerateRequest proto;
  const Clock& clock = *served_.serving()->model.clock;
  const int64_t begin_ns = clock.NowNs();
  if (RpcError error = ParseMessage(bytes, &proto); !error.ok()) return error;
  NoteRequest(proto);
  served_.NoteParse(clock.NowNs() - begin_ns);
  if (!InferenceCore::MayCompile(proto)) return Admit(proto);
  const auto shared = std::make_shared<const v1::GenerateRequest>(std::move(proto));
  return SubmitAgain(*shared, [this, shared] { return Admit(*shared); });
}

RpcError GenerateCall::Admit(const v1::GenerateRequest& proto) {
  if (RpcError error = served_.Admit(proto, OnReady()); !error.ok()) return error;

  // At once on admission, so that a client can tell being accepted from the first token.
  AddServedMetadata(served_, *context_);
  context_->AddInitialMetadata("x-served-model", MetadataText(served_.serving()->model.names[0]));
  context_->AddInitialMetadata("x-server-version", TRAMONTANE_VERSION);
  StartSendInitialMetadata();
  {
    std::lock_guard lock(mutex_);
    admitted_ = true;
  }
  WriteNext();
  return {};
}

void GenerateCall::OnWriteDone(bool ok) {
  StopWriteClock();
  {
    std::lock_guard lock(mutex_);
    write_in_flight_ = false;
    if (ok && writing_content_) served_.NoteDelivered();
    if (!ok) DropEvents();
  }
  WriteNext();
}

void GenerateCall::DropEvents() {
  reader_gone_ = true;
  outbox_.clear();
  served_.Cancel();
}

// Starts one write, or ends the call, if either is due. gRPC is called without the lock: the flags already
// keep others out.
void GenerateCall::WriteNext() {
  std::unique_lock lock(mutex_);
  if (!admitted_ || write_in_flight_ || ended_) return;
  if (outbox_.empty() && !outcome_) TakeEvents();

  const bool has_message = !outbox_.empty();
  if (has_message) {
    v1::GenerateResponse& event = outbox_.front();
    if (event.has_finished()) served_.SetStages(event.mutable_finished());  // the content before it is out
    writing_content_ = IsContent(event);
    writing_ = SerializeMessage(event);
    outbox_.pop_front();
    write_in_flight_ = true;
    StartWriteClock(writing_.Length());
  }
  ended_ = outbox_.empty() && outcome_.has_value();
  const bool ends = ended_;
  lock.unlock();

  if (has_message && ends) {
    WriteAndFinish(&writing_, EndServed(*outcome_, served_, *context_));
  } else if (has_message) {
    StartWrite(&writing_);
  } else if (ends) {
    Finish(EndServed(*outcome_, served_, *context_));
  }
}

void GenerateCall::TakeEvents() {
  InferenceEvents taken = served_.Take();
  int64_t bytes = 0;
  for (const v1::GenerateResponse& event : taken.events) bytes += static_cast<int64_t>(event.ByteSizeLong());
  if (!reader_gone_ && !TryHold(bytes)) {
    DropEvents();
    outcome_ = calls_.open.NoRoomError();
    return;
  }
  for (v1::GenerateResponse& event : taken.events) {
    if (reader_gone_) break;
    std::vector<v1::GenerateResponse> parts = PartsOf(std::move(event));
    std::move(parts.begin(), parts.end(), std::back_inserter(outbox_));
  }
  if (taken.done) outcome_ = taken.outcome;
}

void GenerateCall::NoteRefused() {
  std::lock_guard lock(mutex_);
  ended_ = true;
}

}  // namespace tramontane
