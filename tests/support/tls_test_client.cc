#include "tests/support/tls_test_client.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <csignal>
#include <utility>

namespace tramontane {
namespace {

using BioPtr = std::unique_ptr<BIO, void (*)(BIO*)>;

BioPtr BioOf(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free_all};
}

void Trust(const std::string& pem, SSL_CTX* context) {
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  X509* authority = PEM_read_bio_X509(BioOf(pem).get(), nullptr, nullptr, nullptr);
  X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority);
  X509_free(authority);
}

void Show(const TestPair& pair, SSL_CTX* context) {
  X509* certificate = PEM_read_bio_X509(BioOf(pair.cert).get(), nullptr, nullptr, nullptr);
  EVP_PKEY* key = PEM_read_bio_PrivateKey(BioOf(pair.key).get(), nullptr, nullptr, nullptr);
  SSL_CTX_use_certificate(context, certificate);
  SSL_CTX_use_PrivateKey(context, key);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

SSL* NewSession(const TlsTestClient::Options& options, int fd) {
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  if (!options.ca.empty()) Trust(options.ca, context.get());
  if (!options.pair.cert.empty()) Show(options.pair, context.get());
  if (options.version != 0) {
    SSL_CTX_set_min_proto_version(context.get(), options.version);
    SSL_CTX_set_max_proto_version(context.get(), options.version);
  }
  SSL* session = SSL_new(context.get());
  SSL_set_alpn_protos(session, reinterpret_cast<const unsigned char*>(options.alpn.data()),
                      static_cast<unsigned>(options.alpn.size()));
  SSL_set1_host(session, "localhost");
  SSL_set_fd(session, fd);
  return session;
}

}  // namespace

TlsTestClient::TlsTestClient(const std::string& address, const Options& options)
    : socket_(address, options.socket), session_(NewSession(options, socket_.fd()), SSL_free) {
  std::signal(SIGPIPE,
              SIG_IGN);  // NOLINT(bugprone-signal-handler,cert-msc54-cpp): OpenSSL writes as to a file
  established_ = SSL_connect(session_.get()) == 1;
}

TlsTestClient::~TlsTestClient() = default;

std::string TlsTestClient::server_name() const {
  const std::unique_ptr<X509, void (*)(X509*)> certificate(SSL_get1_peer_certificate(session_.get()),
                                                           X509_free);
  char name[256] = {};
  if (certificate == nullptr) return "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name, sizeof name);
  return name;
}

std::string TlsTestClient::alpn() const {
  const unsigned char* agreed = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(session_.get(), &agreed, &size);
  return std::string(reinterpret_cast<const char*>(agreed), size);
}

int TlsTestClient::version() const { return SSL_version(session_.get()); }

bool TlsTestClient::has_heard_goodbye() const {
  return (SSL_get_shutdown(session_.get()) & SSL_RECEIVED_SHUTDOWN) != 0;
}

bool TlsTestClient::Send(std::string_view bytes) {
  return SSL_write(session_.get(), bytes.data(), static_cast<int>(bytes.size())) > 0;
}

bool TlsTestClient::Fill() {
  char bytes[16384];
  const int got = SSL_read(session_.get(), bytes, sizeof bytes);
  if (got > 0) buffer_.append(bytes, static_cast<size_t>(got));
  return got > 0;
}

std::string TlsTestClient::ReadUntil(std::string_view text) {
  size_t at = buffer_.find(text);
  while (at == std::string::npos && Fill()) at = buffer_.find(text);
  const size_t end = at == std::string::npos ? buffer_.size() : at + text.size();
  std::string read = buffer_.substr(0, end);
  buffer_.erase(0, end);
  return read;
}

std::string TlsTestClient::ReadToEnd() {
  while (Fill()) {
  }
  return std::exchange(buffer_, {});
}

HttpReply TlsTestClient::Ask(const std::string& request) {
  if (!Send(request)) return {};
  return ParseReply(ReadToEnd());
}

void TlsTestClient::ShutdownSend() { SSL_shutdown(session_.get()); }

}  // namespace tramontane
