// What a client makes of a server's grpc::Status: the way back of grpc_status.h.
// Any thread. Pure functions.
#pragma once

#include <grpcpp/support/status.h>

#include "server/call/rpc_error.h"

namespace tramontane {

// The field is the first one that the details name.
RpcError FromGrpcStatus(const grpc::Status& status);
// A server of ours has said it; where it is gRPC's own word there are none.
bool HasDetails(const grpc::Status& status);

}  // namespace tramontane
