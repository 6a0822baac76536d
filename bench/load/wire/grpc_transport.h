// Transport to a Tramontane server over gRPC (proto/tramontane/v1). Stamps are taken by the first instruction
// of the read callbacks: gRPC does not show when its sockets were read.
// Any thread; `done` is called on threads of gRPC.
#pragma once

#include <memory>
#include <string>

#include "bench/load/transport.h"
#include "bench/load/wire/wire_target.h"
#include "kernels/core/status.h"

namespace tramontane::load {

// INVALID_ARGUMENT where a certificate's file cannot be read; UNIMPLEMENTED in a build without gRPC.
StatusOr<std::unique_ptr<Transport>> ConnectGrpc(const std::shared_ptr<const WireTarget>& target);

// By GetModel.
StatusOr<std::string> FirstGrpcModel(const std::shared_ptr<const WireTarget>& target);

}  // namespace tramontane::load
