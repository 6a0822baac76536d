// UnaryRpc: a call with one answer, as its row says (core/unary_calls.h).
#pragma once

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>

#include "server/core/unary_calls.h"
#include "server/grpc/raw_call.h"

namespace tramontane {

class UnaryRpc final : public RawCall {
 public:
  UnaryRpc(GrpcCalls& calls, grpc::GenericCallbackServerContext* context, InferenceCore& core,
           const google::protobuf::MethodDescriptor& method)
      : RawCall(calls, context), core_(core), method_(method), row_(FindUnaryCall(*method.input_type())) {
    context->AddInitialMetadata(kRequestIdKey, request_id());
  }

 private:
  void OnMessage(const grpc::ByteBuffer& bytes) override;
  void Answer(const grpc::ByteBuffer& bytes, const Serving& serving);  // where the row says

  InferenceCore& core_;
  const google::protobuf::MethodDescriptor& method_;
  const UnaryCall& row_;
};

}  // namespace tramontane
