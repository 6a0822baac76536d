// How a ServedCall's end goes to gRPC: its ids, its trailers, its status. Pure functions; whoever ends the
// call, while its context lasts.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/call/rpc_error.h"
#include "server/core/served_call.h"

namespace tramontane {

// To the initial metadata: its ids, and what its caller's key has left.
void AddServedMetadata(const ServedCall& served, grpc::CallbackServerContext& context);

// Ends the call; the status with its trailers. Once, before the status goes to gRPC.
grpc::Status EndServed(const RpcError& error, ServedCall& served, grpc::CallbackServerContext& context);

}  // namespace tramontane
