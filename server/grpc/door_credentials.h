// What the gRPC door shows its clients, and wants from them.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "server/access/tls_files.h"

namespace tramontane {

// Null: no TLS. Else `files` outlives the server: gRPC looks into its copies each second.
std::shared_ptr<grpc::ServerCredentials> DoorCredentials(const TlsFiles* files);

}  // namespace tramontane
