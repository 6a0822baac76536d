// A context policy as the .proto has it, and back: of requests, and of saved sessions. Pure functions; any
// thread.
#pragma once

#include "kernels/context_policy.h"
#include "server/call/rpc_error.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

v1::ContextPolicy ContextPolicyToProto(const ContextPolicy& policy);
// What is left open is 0 for ContextPolicyOf. Its numbers may still be none of a policy
// (CheckContextPolicy).
RpcError ContextPolicyFromProto(const v1::ContextPolicy& proto, ContextPolicy* policy);

}  // namespace tramontane
