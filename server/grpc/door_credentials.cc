#include "server/grpc/door_credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

namespace tramontane {

std::shared_ptr<grpc::ServerCredentials> DoorCredentials(const TlsFiles* files) {
  namespace tls = grpc::experimental;
  constexpr unsigned kLookSeconds = 1;
  if (files == nullptr) return grpc::InsecureServerCredentials();
  const std::string& pair = files->pair_path();  // one file: gRPC never sees a key with another's certificate
  tls::TlsServerCredentialsOptions options(std::make_shared<tls::FileWatcherCertificateProvider>(
      pair, pair, files->client_ca_path(), kLookSeconds));
  options.watch_identity_key_cert_pairs();
  if (!files->client_ca_path().empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return tls::TlsServerCredentials(options);
}

}  // namespace tramontane
