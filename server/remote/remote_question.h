// A unary call of the separate gateway, at one server after the other until one answers. Any thread; the
// callback comes on gRPC's. Always: an answer that is given on has passed AnswerFault.
#pragma once

#include <google/protobuf/message.h>

#include <memory>

#include "server/call/inference_client.h"
#include "server/remote/remote_server.h"

namespace tramontane {

// `response` has the type that answers `request`. `servers` outlives the call.
void AskRemotely(RemoteServers& servers, const Caller& caller,
                 std::shared_ptr<const google::protobuf::Message> request,
                 std::unique_ptr<google::protobuf::Message> response,
                 InferenceClient::Done<google::protobuf::Message> done);

}  // namespace tramontane
