// RpcError to grpc::Status, with the status details (google.rpc.Status in grpc-status-details-bin).
// Any thread. Pure functions.
#pragma once

#include <grpcpp/support/status.h>

#include "server/call/rpc_error.h"

namespace tramontane {

grpc::Status ToGrpcStatus(const RpcError& error);

}  // namespace tramontane
