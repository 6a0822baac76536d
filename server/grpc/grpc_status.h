// RpcError to grpc::Status, with the status details (google.rpc.Status in grpc-status-details-bin).
// Any thread. Pure functions.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/call/rpc_error.h"

namespace tramontane {

grpc::Status ToGrpcStatus(const RpcError& error);
// The same, with the trailer that gRPC's own retry policies obey.
grpc::Status ToGrpcStatus(const RpcError& error, grpc::CallbackServerContext& context);

}  // namespace tramontane
