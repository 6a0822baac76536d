// How a ServedCall's end goes to gRPC: its ids, its trailers, its status. Pure functions; whoever ends the
// call, while its context lasts.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/call/rpc_error.h"
#include "server/core/served_call.h"

namespace tramontane {

void AddIdsToInitialMetadata(const ServedCall& served, grpc::CallbackServerContext& context);

// Ends the call; the status with its trailers. Once, before the status goes to gRPC.
grpc::Status EndServed(const RpcError& error, ServedCall& served, grpc::CallbackServerContext& context);

}  // namespace tramontane
