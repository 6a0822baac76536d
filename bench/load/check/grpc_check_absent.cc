#include "bench/load/check/grpc_check.h"

namespace tramontane::load {

StatusOr<std::unique_ptr<GrpcScriptedTarget>> StartGrpcTarget(const GrpcScript& /*script*/) {
  return Unimplemented("this build has no gRPC");
}

}  // namespace tramontane::load
