// A Generate of the separate gateway, at one server after the other until one says something. Callbacks as of
// InferenceClient, on gRPC's threads.
// Always: what its reader is given has passed EventCheck. Of what the reader has not taken, a call holds one
// Delta per choice, about kHeldCallBytes; beyond that it stops reading, and the server joins what is said
// meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "server/call/inference_client.h"
#include "server/remote/remote_server.h"

namespace tramontane {

// Null: nobody can take it; `refusal` says why. `servers` outlives the call.
std::shared_ptr<InferenceCall> GenerateRemotely(RemoteServers& servers, const Caller& caller,
                                                v1::GenerateRequest request,
                                                const InferenceCallOptions& options,
                                                std::function<void()> on_ready, RpcError* refusal);

}  // namespace tramontane
