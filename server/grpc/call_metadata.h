// What comes with a gRPC call beside its message. Pure functions; gRPC's threads and workers, while the call
// lasts.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <string>

#include "server/access/doorkeeper.h"
#include "server/call/caller.h"
#include "server/call/inference_client.h"

namespace tramontane {

inline constexpr char kCorrelationIdKey[] = "x-correlation-id";

// Who asks, and the trace that it is part of. UNAUTHENTICATED: a key is needed, and none that is valid came;
// then the caller is its address.
RpcError IdentifyCaller(const grpc::CallbackServerContext& context, const Doorkeeper& doorkeeper,
                        bool needs_key, Caller* caller);
InferenceCallOptions OptionsOf(const grpc::CallbackServerContext& context);

// The request's name: what its client calls it where that can be one, else drawn.
std::string RequestIdOf(const grpc::CallbackServerContext& context);

// What a caller takes in one message: what gRPC's clients take by default, or what it says of itself.
size_t MostAnswerBytes(const grpc::CallbackServerContext& context);

// What the caller's key has left, where it has limits, to the initial metadata.
void AddRateLimits(const Caller& caller, grpc::CallbackServerContext& context);

// Metadata values are printable ASCII; gRPC ends the process over anything else.
std::string MetadataText(std::string text);

}  // namespace tramontane
