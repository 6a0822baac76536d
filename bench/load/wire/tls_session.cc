#include "bench/load/wire/tls_session.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <array>

#include "kernels/core/check.h"
#include "server/base/host_port.h"

namespace tramontane::load {
namespace {

// The oldest error that OpenSSL holds, and no error any more.
std::string TlsError() {
  std::array<char, 256> text{};
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "the connection ended";
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

Status CannotRead(const std::string& option, const std::string& file) {
  return InvalidArgument("is \"" + file + "\": " + TlsError()).WithField(option, FieldForm::kSubject);
}

}  // namespace

StatusOr<std::shared_ptr<ssl_ctx_st>> MakeTlsContext(const TargetOptions& options) {
  ERR_clear_error();
  const std::shared_ptr<ssl_ctx_st> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  TM_CHECK(context != nullptr, "no TLS context");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), options.insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, nullptr);
  if (options.ca_file.empty()) {
    SSL_CTX_set_default_verify_paths(context.get());
  } else if (SSL_CTX_load_verify_locations(context.get(), options.ca_file.c_str(), nullptr) != 1) {
    return CannotRead("--ca", options.ca_file);
  }
  if (!options.cert_file.empty() &&
      SSL_CTX_use_certificate_chain_file(context.get(), options.cert_file.c_str()) != 1) {
    return CannotRead("--cert", options.cert_file);
  }
  const std::string& key_file = options.key_file.empty() ? options.cert_file : options.key_file;
  if (!key_file.empty() &&
      SSL_CTX_use_PrivateKey_file(context.get(), key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    return CannotRead("--key", key_file);
  }
  static constexpr std::array<unsigned char, 9> kProtocols = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  SSL_CTX_set_alpn_protos(context.get(), kProtocols.data(), kProtocols.size());
  return context;
}

TlsSession::TlsSession(ssl_ctx_st* context, const std::string& host) : session_(SSL_new(context)) {
  TM_CHECK(session_ != nullptr, "no TLS session");
  SSL_set_bio(session_, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  SSL_set_connect_state(session_);
  if (IsIpAddress(host)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session_), host.c_str());
  } else {
    SSL_set_tlsext_host_name(session_, host.c_str());
    SSL_set1_host(session_, host.c_str());
  }
}

TlsSession::~TlsSession() { SSL_free(session_); }

bool TlsSession::Handshake() {
  if (established_) return true;
  ERR_clear_error();
  const int result = SSL_do_handshake(session_);
  established_ = result == 1;
  if (established_ || SSL_get_error(session_, result) == SSL_ERROR_WANT_READ) return true;
  Fail(result);
  return false;
}

void TlsSession::Fail(int result) {
  const long verified = SSL_get_verify_result(session_);
  const bool has_ended = SSL_get_error(session_, result) == SSL_ERROR_ZERO_RETURN;
  const bool is_distrust = verified != X509_V_OK && SSL_get_verify_mode(session_) != SSL_VERIFY_NONE;
  error_ = is_distrust ? std::string("the certificate: ") + X509_verify_cert_error_string(verified)
           : has_ended ? "the server ended the session"
                       : TlsError();
}

void TlsSession::Receive(std::string_view encrypted) {
  BIO_write(SSL_get_rbio(session_), encrypted.data(), static_cast<int>(encrypted.size()));
}

bool TlsSession::Decrypt(std::string* plain) {
  std::array<char, 16384> bytes;
  for (;;) {
    ERR_clear_error();
    const int got = SSL_read(session_, bytes.data(), static_cast<int>(bytes.size()));
    if (got > 0) {
      plain->append(bytes.data(), static_cast<size_t>(got));
      continue;
    }
    if (SSL_get_error(session_, got) == SSL_ERROR_WANT_READ) return true;
    Fail(got);
    return false;
  }
}

void TlsSession::Encrypt(std::string_view plain) {
  ERR_clear_error();
  const int written = SSL_write(session_, plain.data(), static_cast<int>(plain.size()));
  TM_CHECK(written == static_cast<int>(plain.size()), "a TLS session took %d of %zu bytes", written,
           plain.size());
}

void TlsSession::TakeOutput(std::string* out) {
  std::array<char, 16384> bytes;
  BIO* output = SSL_get_wbio(session_);
  while (BIO_ctrl_pending(output) > 0) {
    const int got = BIO_read(output, bytes.data(), static_cast<int>(bytes.size()));
    if (got <= 0) return;
    out->append(bytes.data(), static_cast<size_t>(got));
  }
}

}  // namespace tramontane::load
