#include "server/remote/channel_credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <vector>

namespace tramontane {

std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const ClientTls& tls) {
  if (!tls.is_on) return grpc::InsecureChannelCredentials();
  if (!tls.insecure) {
    return grpc::SslCredentials(
        {.pem_root_certs = tls.ca, .pem_private_key = tls.key, .pem_cert_chain = tls.cert});
  }
  namespace grpc_tls = grpc::experimental;
  grpc_tls::TlsChannelCredentialsOptions unverified;
  unverified.set_verify_server_certs(false);
  unverified.set_check_call_host(false);
  unverified.set_certificate_verifier(std::make_shared<grpc_tls::NoOpCertificateVerifier>());
  if (!tls.cert.empty()) {
    const std::vector<grpc_tls::IdentityKeyCertPair> pairs = {{tls.key, tls.cert}};
    unverified.set_certificate_provider(std::make_shared<grpc_tls::StaticDataCertificateProvider>(pairs));
    unverified.watch_identity_key_cert_pairs();
  }
  return grpc_tls::TlsCredentials(unverified);
}

}  // namespace tramontane
