// GrpcAcceptor: the gRPC door's thread: takes connections as far as there is room, hands them to gRPC, and
// looks after those that are there and their calls. gRPC's own acceptor counts nobody, and gives up its port
// where the system has no more files.
//
// Started once gRPC is; gone before gRPC shuts down.
#pragma once

#include <grpcpp/server_builder.h>

#include <memory>
#include <thread>

#include "server/base/file_descriptor.h"
#include "server/grpc/listener.h"
#include "server/grpc/raw_call.h"

namespace tramontane {

class GrpcAcceptor {
 public:
  using Handover = grpc::experimental::ExternalConnectionAcceptor;

  // `calls` is borrowed and outlives it.
  GrpcAcceptor(std::unique_ptr<GrpcListener> listener, std::unique_ptr<Handover> handover, GrpcCalls& calls);
  ~GrpcAcceptor();  // takes no more connections

 private:
  void Loop();
  // False: the system has no more files.
  bool AcceptAll(int listening);

  const std::unique_ptr<GrpcListener> listener_;
  const std::unique_ptr<Handover> handover_;
  GrpcCalls& calls_;
  const FileDescriptor stop_;  // an eventfd
  std::thread thread_;         // last: it uses all of the above
};

}  // namespace tramontane
