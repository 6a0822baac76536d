#include "server/grpc/unary_call.h"

#include <google/protobuf/message.h>

#include <memory>
#include <string>

#include "server/grpc/raw_message.h"

namespace tramontane {
namespace {

constexpr int64_t kMaxControlBytes = 1 << 20;  // of a request that is answered on gRPC's own thread

using google::protobuf::Message;

std::unique_ptr<Message> NewMessage(const google::protobuf::Descriptor& type) {
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type)->New());
}

}  // namespace

void UnaryRpc::OnMessage(const grpc::ByteBuffer& bytes) {
  AddRateLimits(caller(), *context_);
  const int64_t length = UnpackedBytes(bytes);
  RpcError refusal;
  if (row_.thread == UnaryThread::kCallers && length > kMaxControlBytes) {
    refusal = ToRpcError(InvalidArgument("the request has " + std::to_string(length) +
                                         " bytes, the most is " + std::to_string(kMaxControlBytes)));
  } else if (!TryHold(length)) {  // few answers are shorter
    refusal = calls_.open.NoRoomError();
  } else {
    const auto self = std::static_pointer_cast<UnaryRpc>(shared_from_this());
    core_.RunUnary(
        row_.thread, length, caller(),
        [self, bytes](const Serving& serving) { self->Answer(bytes, serving); },
        [self](const RpcError& error) { self->End(error); });
  }
  if (!refusal.ok()) End(refusal);
}

void UnaryRpc::Answer(const grpc::ByteBuffer& bytes, const Serving& serving) {
  if (context_->IsCancelled()) return Finish(grpc::Status::CANCELLED);
  const std::unique_ptr<Message> request = NewMessage(*method_.input_type());
  const std::unique_ptr<Message> answer = NewMessage(*method_.output_type());
  RpcError error = ParseMessage(bytes, request.get());
  if (error.ok()) error = row_.answer({core_, serving, caller()}, *request, answer.get());
  if (error.ok()) error = HoldAnswer(*answer);
  if (!error.ok()) return End(error);
  FinishWith(*answer, grpc::Status::OK);
}

}  // namespace tramontane
