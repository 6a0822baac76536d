#include "server/commands/client_tls_flags.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <utility>

#include "kernels/core/check.h"
#include "server/access/whole_file.h"

namespace tramontane {
namespace {

constexpr int64_t kMostTlsFileBytes = int64_t{4} << 20;

using BioPtr = std::unique_ptr<BIO, void (*)(BIO*)>;
using CertificatePtr = std::unique_ptr<X509, void (*)(X509*)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)>;

StatusOr<std::string> ReadTlsFile(const std::string& flag, const std::string& path) {
  if (path.empty()) return std::string();
  StatusOr<std::string> text = ReadWholeFile(path, kMostTlsFileBytes);
  if (text.ok() && !text->empty()) return text;
  return InvalidArgument(flag + " is \"" + path + "\": the file " +
                         (text.ok() ? "is empty" : text.status().message()));
}

BioPtr BioOf(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free_all};
}

int NoPassword(char*, int, int, void*) { return -1; }

CertificatePtr NextCertificate(BIO* bio) {
  return {PEM_read_bio_X509(bio, nullptr, NoPassword, nullptr), X509_free};
}

Status TrustThose(const std::string& pem, SSL_CTX* context) {
  if (pem.empty()) {
    SSL_CTX_set_default_verify_paths(context);
    return {};
  }
  const BioPtr bio = BioOf(pem);
  int count = 0;
  for (CertificatePtr next = NextCertificate(bio.get()); next != nullptr; next = NextCertificate(bio.get())) {
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context), next.get());
    ++count;
  }
  return count > 0 ? Status() : InvalidArgument("--ca has no certificate in PEM");
}

Status ShowPair(const ClientTls& tls, SSL_CTX* context) {
  if (tls.cert.empty()) return {};
  const BioPtr bio = BioOf(tls.cert);
  const CertificatePtr first = NextCertificate(bio.get());
  if (first == nullptr || SSL_CTX_use_certificate(context, first.get()) != 1) {
    return InvalidArgument("--cert has no certificate in PEM");
  }
  for (CertificatePtr next = NextCertificate(bio.get()); next != nullptr; next = NextCertificate(bio.get())) {
    SSL_CTX_add1_chain_cert(context, next.get());
  }
  const KeyPtr key(PEM_read_bio_PrivateKey(BioOf(tls.key).get(), nullptr, NoPassword, nullptr),
                   EVP_PKEY_free);
  if (key == nullptr) return InvalidArgument("--key has no private key in PEM, without a password");
  if (X509_check_private_key(first.get(), key.get()) != 1) {
    return InvalidArgument("--key is not the key of --cert");
  }
  SSL_CTX_use_PrivateKey(context, key.get());
  return {};
}

}  // namespace

void AddTlsFlags(ClientTlsFlags* flags, CLI::App* command) {
  command
      ->add_option("--ca", flags->ca, "certificates to trust, PEM; alone it means TLS, as the next three do")
      ->type_name("FILE")
      ->group("security");
  command->add_option("--cert", flags->cert, "the client's own certificate, PEM")
      ->type_name("FILE")
      ->group("security");
  command->add_option("--key", flags->key, "its private key, PEM; else in --cert")
      ->type_name("FILE")
      ->group("security");
  command->add_flag("--insecure", flags->insecure, "TLS with whatever certificate the server has")
      ->group("security");
}

StatusOr<ClientTls> ReadClientTls(const ClientTlsFlags& flags) {
  ClientTls tls;
  if (!flags.key.empty() && flags.cert.empty()) return InvalidArgument("--key goes with --cert");
  tls.insecure = flags.insecure;
  tls.is_on = flags.insecure || !flags.ca.empty() || !flags.cert.empty();
  if (!tls.is_on) return tls;
  TM_ASSIGN_OR_RETURN(tls.ca, ReadTlsFile("--ca", flags.ca));
  TM_ASSIGN_OR_RETURN(tls.cert, ReadTlsFile("--cert", flags.cert));
  TM_ASSIGN_OR_RETURN(tls.key, ReadTlsFile("--key", flags.key.empty() ? flags.cert : flags.key));
  const auto context = ClientTlsContext(tls);
  if (!context.ok()) return context.status();
  return tls;
}

StatusOr<std::shared_ptr<ssl_ctx_st>> ClientTlsContext(const ClientTls& tls) {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  TM_CHECK(context != nullptr, "no TLS context");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), tls.insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, nullptr);
  TM_RETURN_IF_ERROR(TrustThose(tls.ca, context.get()));
  TM_RETURN_IF_ERROR(ShowPair(tls, context.get()));
  ERR_clear_error();
  static constexpr unsigned char kProtocols[] = "\x08http/1.1";
  SSL_CTX_set_alpn_protos(context.get(), kProtocols, sizeof kProtocols - 1);
  return context;
}

}  // namespace tramontane
