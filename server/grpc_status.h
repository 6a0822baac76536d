// RpcError to grpc::Status and back: the status details (google.rpc.Status in grpc-status-details-bin).
// Any thread. Pure functions.
#pragma once

#include <grpcpp/support/status.h>

#include "kernels/core/status.h"
#include "server/rpc_error.h"

namespace tramontane {

grpc::Status ToGrpcStatus(const RpcError& error);

// What a client makes of it.
RpcError FromGrpcStatus(const grpc::Status& status);
// The same in short: the field is the first one that the details name.
Status ShortFromGrpcStatus(const grpc::Status& status);

}  // namespace tramontane
