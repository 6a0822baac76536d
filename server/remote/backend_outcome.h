// What a call to a server behind the gateway came to, in words for the gateway's client. Which server it was,
// and what gRPC itself says of it, goes to the log alone. Any thread.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "server/call/rpc_error.h"

namespace tramontane {

// Of a `status` that is not OK: what the server has said. Where gRPC speaks in its place, or the server
// refuses the gateway itself: BACKEND_LOST, BAD_GATEWAY or gRPC's code, in our words.
RpcError BackendError(const grpc::Status& status, const std::string& address);

// BAD_GATEWAY: what the server says is none of what it may say. `fault` is for the log.
RpcError BadGatewayError(const std::string& fault, const std::string& address);

// NO_BACKEND: no server that a call may be made to is up.
RpcError NoBackendError();

}  // namespace tramontane
