#include "bench/load/wire/grpc_transport.h"

namespace tramontane::load {
namespace {

Status NoGrpc(const WireTarget& target) {
  return Unimplemented("is \"" + target.options().url + "\", and this build has no gRPC")
      .WithField("--target", FieldForm::kSubject);
}

}  // namespace

StatusOr<std::unique_ptr<Transport>> ConnectGrpc(const std::shared_ptr<const WireTarget>& target) {
  return NoGrpc(*target);
}

StatusOr<std::string> FirstGrpcModel(const std::shared_ptr<const WireTarget>& target) {
  return NoGrpc(*target);
}

}  // namespace tramontane::load
