// GrpcListener: the sockets that an address of the gRPC door stands for: "HOST:PORT", where 0.0.0.0 and [::]
// are every address of both families, or "unix:PATH". Closes them when it goes, and removes the path. One
// thread at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "server/base/file_descriptor.h"

namespace tramontane {

class GrpcListener {
 public:
  // UNAVAILABLE says why the system refuses it, INVALID_ARGUMENT what is wrong with the address; both begin
  // with "grpc_address".
  static StatusOr<std::unique_ptr<GrpcListener>> Open(const std::string& address);
  ~GrpcListener();

  // With the port that was really taken.
  const std::string& address() const { return address_; }
  const std::vector<std::unique_ptr<FileDescriptor>>& sockets() const { return sockets_; }

 private:
  GrpcListener() = default;

  std::string address_;
  std::string path_;  // of a unix socket
  std::vector<std::unique_ptr<FileDescriptor>> sockets_;
};

}  // namespace tramontane
