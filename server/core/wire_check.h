// A message's bytes, looked over before they become a message. Pure functions; any thread. No gRPC in here.
#pragma once

#include <google/protobuf/descriptor.h>

#include <string>

#include "server/call/rpc_error.h"

namespace tramontane {

// Refuses a message of millions of tiny fields, and text that is not UTF-8, before anything is built from it:
// two bytes on the wire can become a hundred in memory. Worth its time for large messages only.
RpcError CheckWireFields(const google::protobuf::Descriptor& type, const std::string& bytes);

// Why `bytes` were refused by the protobuf parser as a message of this type: the path of the first string
// that is not UTF-8, or that the bytes are no such message.
RpcError ExplainParseFailure(const google::protobuf::Descriptor& type, const std::string& bytes);

}  // namespace tramontane
