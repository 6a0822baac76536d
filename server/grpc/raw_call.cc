#include "server/grpc/raw_call.h"

#include <chrono>
#include <string>
#include <utility>

#include "server/base/peer_address.h"
#include "server/base/text.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/message_parts.h"
#include "server/grpc/raw_message.h"

namespace tramontane {
namespace {

int64_t Ns(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

}  // namespace

int64_t RawCall::NowNs() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

RawCall::RawCall(GrpcCalls& calls, grpc::GenericCallbackServerContext* context, NeedsKey needs_key)
    : calls_(calls),
      context_(context),
      share_(AddressShare(AddressOfGrpcPeer(context->peer()))),
      connection_(calls.connections.Find(context->peer())),
      is_told_of_(needs_key == NeedsKey::kYes),
      held_(calls.open.unread(), share_) {
  stranger_ = IdentifyCaller(*context, calls.doorkeeper, needs_key == NeedsKey::kYes, &caller_);
  if (!caller_.trace.parent.empty()) context->AddInitialMetadata(kTraceParentKey, caller_.trace.parent);
}

void RawCall::Begin() {
  self_ = shared_from_this();
  if (connection_ != nullptr) connection_->CallBegan();
  RpcError refusal = calls_.open.Add(this);
  if (refusal.ok()) refusal = stranger_;
  if (refusal.ok()) return OnBegun();
  OnRefused(refusal);
  End(refusal);
}

void RawCall::ReadNext() {
  const double timeout = calls_.open.options().read_timeout;
  reading_ = true;
  if (timeout > 0) due_ns_ = NowNs() + Ns(timeout);
  StartRead(&message_);
}

void RawCall::OnReadDone(bool ok) {
  if (!reading_.exchange(false)) return;  // EndLate has ended it
  due_ns_ = 0;
  if (connection_ != nullptr && !std::exchange(has_read_, true)) connection_->MessageRead();
  if (!ok) return OnNoMessage();
  const grpc::ByteBuffer bytes = std::exchange(message_, grpc::ByteBuffer());
  OnMessage(bytes);
}

void RawCall::OnNoMessage() {
  const bool is_cancelled = context_->IsCancelled();
  OnRefused(ToRpcError(Status(is_cancelled ? StatusCode::kCancelled : StatusCode::kInvalidArgument, "")));
  Finish(is_cancelled ? grpc::Status::CANCELLED
                      : grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                                     "the call has no message that the server could read"));
}

void RawCall::EndLate() {
  due_ns_ = 0;
  if (!reading_.exchange(false)) return context_->TryCancel();  // nobody would read why
  const auto seconds = static_cast<int64_t>(calls_.open.options().read_timeout);
  RpcError error = ToRpcError(
      Status(StatusCode::kDeadlineExceeded,
             "the call's message did not come within " + std::to_string(seconds) + " s (grpc_read_timeout)"));
  error.reason = "READ_TIMEOUT";
  OnRefused(error);
  End(error);
}

void RawCall::OnDone() {
  calls_.open.Remove(this);
  if (connection_ != nullptr) {
    if (!has_read_) connection_->MessageRead();
    connection_->CallEnded();
  }
  self_.reset();
}

void RawCall::StartWriteClock(size_t bytes) {
  const double timeout = calls_.open.options().write_timeout;
  if (timeout > 0) due_ns_ = NowNs() + Ns(timeout * MessagesIn(bytes));
}

void RawCall::StopWriteClock() {
  due_ns_ = 0;
  if (connection_ != nullptr) connection_->MessageWritten();
}

RpcError RawCall::HoldAnswer(const google::protobuf::Message& answer) {
  const size_t most = MostAnswerBytes(*context_);
  const size_t bytes = answer.ByteSizeLong();
  if (bytes > most) {
    RpcError error = ToRpcError(InvalidArgument(
        "the answer has " + std::to_string(bytes) + " bytes, and a message holds " + std::to_string(most) +
        ": ask for less at once, or say in the metadata " + kMaxMessageBytesKey + " that you take more"));
    error.reason = "ANSWER_TOO_LARGE";
    return error;
  }
  return TryHold(static_cast<int64_t>(bytes)) ? RpcError() : calls_.open.NoRoomError();
}

void RawCall::FinishWith(const google::protobuf::Message& answer, const grpc::Status& status) {
  answer_ = SerializeMessage(answer);
  StartWriteClock(answer_.Length());
  WriteAndFinish(&answer_, status);
}

// ---- the end ------------------------------------------------------------------------------------

void RawCall::End(const RpcError& error) {
  outcome_ = error;
  Finish(ToGrpcStatus(error, *context_));
}

void RawCall::Finish(const grpc::Status& status) {
  Tell(status);
  grpc::ServerGenericBidiReactor::Finish(status);
}

void RawCall::WriteAndFinish(const grpc::ByteBuffer* bytes, const grpc::Status& status) {
  Tell(status);
  StartWriteAndFinish(bytes, grpc::WriteOptions(), status);
}

const std::string& RawCall::request_id() {
  if (request_id_.empty()) request_id_ = RequestIdOf(*context_);
  return request_id_;
}

void RawCall::Tell(const grpc::Status& status) {
  if (calls_.log.tell == nullptr || !is_told_of_) return;
  const auto code = static_cast<StatusCode>(status.error_code());
  RpcError end = outcome_;  // OK, where only a status was given
  end.code = code;
  RequestLine line = {.id = request_id(),
                      .key = caller_.key_name,
                      .route = context_->method().substr(0, kMaxLoggedFieldBytes),
                      .e2el_ms = static_cast<double>(NowNs() - begin_ns_) / 1e6,
                      .status = StatusCodeName(code),
                      .outcome = EndOfCall(end, /*has_begun=*/false).outcome,
                      .trace_id = std::string(caller_.trace.trace_id()),
                      .error = LowerCase(outcome_.reason)};
  Describe(&line);
  // What is said of a fault of the request may quote it.
  const bool is_servers_fault = code == StatusCode::kInternal || code == StatusCode::kUnavailable ||
                                code == StatusCode::kDeadlineExceeded || code == StatusCode::kUnknown;
  if (line.outcome == RequestOutcome::kError && is_servers_fault) {
    line.message = status.error_message().substr(0, kMaxLoggedFieldBytes);
  }
  calls_.log.tell(line);
}

}  // namespace tramontane
