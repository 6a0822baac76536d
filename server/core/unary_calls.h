// The service's unary calls, each a row: how either door answers it, and on which thread. Constant; any
// thread.
#pragma once

#include <google/protobuf/message.h>

#include <functional>
#include <vector>

#include "server/call/caller.h"
#include "server/call/rpc_error.h"
#include "server/core/inference_core.h"

namespace tramontane {

struct UnaryCall {
  struct Context {
    InferenceCore& core;
    const Serving& serving;
    const Caller& caller;
  };
  using Message = google::protobuf::Message;

  const google::protobuf::Descriptor* request = nullptr;
  UnaryThread thread = UnaryThread::kCallers;
  // The messages have the types of the .proto.
  std::function<RpcError(const Context& context, const Message& request, Message* response)> answer = {};
};

const std::vector<UnaryCall>& UnaryCalls();

// REQUIRES: a row has this request.
const UnaryCall& FindUnaryCall(const google::protobuf::Descriptor& request);

}  // namespace tramontane
