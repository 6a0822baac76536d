#include "server/remote/channel_credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <vector>

namespace tramontane {

std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const ClientTls& tls) {
  if (!tls.is_on) return grpc::InsecureChannelCredentials();
  if (!tls.insecure && tls.pair_path.empty()) {
    return grpc::SslCredentials(
        {.pem_root_certs = tls.ca, .pem_private_key = tls.key, .pem_cert_chain = tls.cert});
  }
  namespace grpc_tls = grpc::experimental;
  grpc_tls::TlsChannelCredentialsOptions options;
  if (tls.insecure) {
    options.set_verify_server_certs(false);
    options.set_check_call_host(false);
    options.set_certificate_verifier(std::make_shared<grpc_tls::NoOpCertificateVerifier>());
  }
  if (!tls.pair_path.empty()) {
    constexpr unsigned kLookSeconds = 1;
    options.set_certificate_provider(std::make_shared<grpc_tls::FileWatcherCertificateProvider>(
        tls.pair_path, tls.pair_path, tls.ca_path, kLookSeconds));
    if (!tls.ca_path.empty()) options.watch_root_certs();
  } else if (!tls.cert.empty()) {
    const std::vector<grpc_tls::IdentityKeyCertPair> pairs = {{tls.key, tls.cert}};
    options.set_certificate_provider(std::make_shared<grpc_tls::StaticDataCertificateProvider>(pairs));
  }
  if (!tls.cert.empty()) options.watch_identity_key_cert_pairs();
  return grpc_tls::TlsCredentials(options);
}

}  // namespace tramontane
