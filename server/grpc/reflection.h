// ReflectionCall: gRPC's standard reflection: which services there are, and the files that describe them.
#pragma once

#include <grpcpp/grpcpp.h>

#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "server/grpc/raw_call.h"

namespace tramontane {

// Pure function; any thread.
grpc::reflection::v1alpha::ServerReflectionResponse Reflect(
    const grpc::reflection::v1alpha::ServerReflectionRequest& request);

class ReflectionCall final : public RawCall {
 public:
  using RawCall::RawCall;

 private:
  void OnMessage(const grpc::ByteBuffer& bytes) override;
  void OnNoMessage() override;
  void OnWriteDone(bool ok) override;

  grpc::ByteBuffer answer_;  // owned by gRPC while it is written
};

}  // namespace tramontane
