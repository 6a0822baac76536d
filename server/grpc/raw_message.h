// Messages in gRPC's bytes. Pure functions; any thread.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "server/call/rpc_error.h"

namespace tramontane {

// What the message takes when it is read: of one that was compressed (gzip), as it says of itself.
int64_t UnpackedBytes(const grpc::ByteBuffer& bytes);

// At most kMaxMessageBytes, unpacked. The error names the field at fault, where one is.
RpcError ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace tramontane
