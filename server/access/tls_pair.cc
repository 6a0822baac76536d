#include "server/access/tls_pair.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

template <typename T, void (*kFree)(T*)>
struct FreeBy {
  void operator()(T* it) const { kFree(it); }
};
using CertificatePtr = std::unique_ptr<X509, FreeBy<X509, X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, FreeBy<EVP_PKEY, EVP_PKEY_free>>;
using BioPtr = std::unique_ptr<BIO, FreeBy<BIO, BIO_free_all>>;

// Why OpenSSL refused, in its words, which quote nothing.
std::string OpenSslReason() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason != nullptr ? reason : "OpenSSL refuses it";
}

Status TlsFault(const char* setting, const std::string& path, const std::string& what) {
  return InvalidArgument(std::string(setting) + ": " + path + " " + what);
}

// Instead of OpenSSL's own, which asks at the terminal.
int NoPassword(char*, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

BioPtr BioOf(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string TextOf(BIO* bio) {
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio, &text);
  return std::string(text, static_cast<size_t>(size));
}

StatusOr<std::vector<CertificatePtr>> ReadCertificates(const char* setting, const std::string& path,
                                                       const std::string& text) {
  ERR_clear_error();
  const BioPtr bio = BioOf(text);
  std::vector<CertificatePtr> certificates;
  bool asked = false;
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, NoPassword, &asked))
    certificates.emplace_back(next);
  const bool is_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  if (!is_end) return TlsFault(setting, path, "has a certificate that cannot be read: " + OpenSslReason());
  ERR_clear_error();
  if (certificates.empty()) return TlsFault(setting, path, "has no certificate in PEM");
  return certificates;
}

StatusOr<KeyPtr> ReadPrivateKey(const std::string& path, const std::string& text) {
  ERR_clear_error();
  const BioPtr bio = BioOf(text);
  bool asked = false;
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, &asked));
  if (asked) return TlsFault("tls_key", path, "is encrypted; it must be a key without a password");
  const bool is_absent = text.find("PRIVATE KEY-----") == std::string::npos;
  if (key == nullptr && is_absent) return TlsFault("tls_key", path, "has no private key in PEM");
  if (key == nullptr) return TlsFault("tls_key", path, "has a key that cannot be read: " + OpenSslReason());
  return key;
}

std::string PemOf(const std::vector<CertificatePtr>& certificates) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  for (const CertificatePtr& certificate : certificates) {
    TM_CHECK(PEM_write_bio_X509(bio.get(), certificate.get()) == 1, "a certificate cannot be written");
  }
  return TextOf(bio.get());
}

std::string PemOf(const KeyPtr& key) {
  const BioPtr bio(BIO_new(BIO_s_secmem()));
  const int written = PEM_write_bio_PrivateKey(bio.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  TM_CHECK(written == 1, "a key cannot be written");
  return TextOf(bio.get());
}

// A client that offers protocols, and not ours, is no client of HTTP.
int SelectHttp(SSL*, const unsigned char** chosen, unsigned char* chosen_size, const unsigned char* offered,
               unsigned offered_size, void*) {
  static constexpr std::string_view kHttp = "http/1.1";
  for (unsigned at = 0; at < offered_size; at += 1u + offered[at]) {
    const std::string_view name(reinterpret_cast<const char*>(offered) + at + 1, offered[at]);
    if (name != kHttp) continue;
    *chosen = offered + at + 1;
    *chosen_size = offered[at];
    return SSL_TLSEXT_ERR_OK;
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

std::shared_ptr<SSL_CTX> NewServerContext() {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  TM_CHECK(context != nullptr, "no TLS context");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                         SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_CIPHER_SERVER_PREFERENCE);
  // What is not the peer's text is one step: a peer that sends nothing else keeps no thread.
  SSL_CTX_clear_mode(context.get(), SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  // Sessions are the clients' to keep (tickets), and end with the context: a new client_ca asks everybody.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  static constexpr unsigned char kSessions[] = "tramontane";
  SSL_CTX_set_session_id_context(context.get(), kSessions, sizeof kSessions - 1);
  SSL_CTX_set_alpn_select_cb(context.get(), SelectHttp, nullptr);
  return context;
}

Status UseCertificates(const TlsTexts& paths, const std::vector<CertificatePtr>& certificates,
                       SSL_CTX* context) {
  for (size_t i = 0; i < certificates.size(); ++i) {
    X509* certificate = certificates[i].get();
    const bool is_taken = i == 0 ? SSL_CTX_use_certificate(context, certificate) == 1
                                 : SSL_CTX_add1_chain_cert(context, certificate) == 1;
    if (!is_taken) return TlsFault("tls_cert", paths.cert, "has a certificate of no use: " + OpenSslReason());
  }
  return {};
}

void RequireClientCertificates(const std::vector<CertificatePtr>& authorities, SSL_CTX* context) {
  X509_STORE* store = SSL_CTX_get_cert_store(context);
  for (const CertificatePtr& authority : authorities) {
    X509_STORE_add_cert(store, authority.get());
    SSL_CTX_add_client_CA(context, authority.get());
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
}

}  // namespace

StatusOr<CheckedTls> CheckTls(const TlsTexts& paths, const TlsTexts& texts) {
  TM_ASSIGN_OR_RETURN(const auto certificates, ReadCertificates("tls_cert", paths.cert, texts.cert));
  TM_ASSIGN_OR_RETURN(const KeyPtr key, ReadPrivateKey(paths.key, texts.key));
  CheckedTls checked = {.context = NewServerContext(), .pair = PemOf(key) + PemOf(certificates)};
  TM_RETURN_IF_ERROR(UseCertificates(paths, certificates, checked.context.get()));
  if (X509_check_private_key(certificates.front().get(), key.get()) != 1) {
    ERR_clear_error();
    return TlsFault("tls_key", paths.key,
                    "is not the key of the first certificate of tls_cert, " + paths.cert);
  }
  if (SSL_CTX_use_PrivateKey(checked.context.get(), key.get()) != 1) {
    return TlsFault("tls_key", paths.key, "has a key of no use: " + OpenSslReason());
  }
  if (paths.client_ca.empty()) return checked;
  TM_ASSIGN_OR_RETURN(const auto authorities,
                      ReadCertificates("tls_client_ca", paths.client_ca, texts.client_ca));
  RequireClientCertificates(authorities, checked.context.get());
  checked.client_ca = PemOf(authorities);
  return checked;
}

}  // namespace tramontane
