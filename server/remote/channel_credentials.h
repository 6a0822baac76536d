// How a channel of gRPC meets its server.
#pragma once

#include <grpcpp/security/credentials.h>

#include <memory>

#include "server/remote/client_tls.h"

namespace tramontane {

std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const ClientTls& tls);

}  // namespace tramontane
