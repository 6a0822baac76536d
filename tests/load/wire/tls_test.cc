// The HTTP transport over TLS: certificates that are trusted, that are not, and of other hosts. The server's
// key and certificate are made for the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "bench/load/connect.h"
#include "tests/load/wire/identity.h"
#include "tests/load/wire/recorded_requests.h"
#include "tests/support/temp_folder.h"

namespace tramontane::load {
namespace {

using ::testing::HasSubstr;

// Answers each request of each connection with the same stream, one connection after the other.
class TlsTarget {
 public:
  // `client`: whose certificate a client must show; null: none.
  TlsTarget(const Identity& identity, const Identity* client) : context_(SSL_CTX_new(TLS_server_method())) {
    SSL_CTX_use_certificate(context_, identity.certificate());
    SSL_CTX_use_PrivateKey(context_, identity.key());
    if (client != nullptr) {
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context_), client->certificate());
      SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    }
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    if (listener_ < 0) {
      ADD_FAILURE() << "no socket";
      return;
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_, any, size), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    EXPECT_EQ(getsockname(listener_, any, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~TlsTarget() {
    shutdown(listener_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    close(listener_);
    SSL_CTX_free(context_);
  }
  TlsTarget(const TlsTarget&) = delete;
  TlsTarget& operator=(const TlsTarget&) = delete;

  std::string port() const { return std::to_string(port_); }

 private:
  void Run() {
    for (int fd = accept(listener_, nullptr, nullptr); fd >= 0; fd = accept(listener_, nullptr, nullptr)) {
      SSL* const session = SSL_new(context_);
      SSL_set_fd(session, fd);
      if (SSL_accept(session) == 1) Serve(session);
      SSL_free(session);
      close(fd);
    }
  }

  static void Serve(SSL* session) {
    const std::string body = "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: [DONE]\n\n";
    const std::string answer =
        "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    std::array<char, 65536> bytes;
    // A request is one write of a client's, and here one record.
    while (SSL_read(session, bytes.data(), static_cast<int>(bytes.size())) > 0) {
      for (const char byte : answer) {  // a record each
        if (SSL_write(session, &byte, 1) <= 0) return;
      }
    }
  }

  SSL_CTX* context_;
  int listener_ = -1;
  int port_ = 0;
  std::thread thread_;
};

class Tls : public ::testing::Test {
 protected:
  Tls() : identity_("DNS:localhost,IP:127.0.0.1") { identity_.WriteCertificate(CaFile()); }

  std::string CaFile() const { return folder_.path() + "/ca.pem"; }

  RequestRecord RecordOf(const TargetOptions& options) {
    auto transport = Connect(options);
    EXPECT_TRUE(transport.ok()) << transport.status();
    RecordedRequests requests(**transport);
    requests.Send("one");
    return requests.WaitFor("one");
  }

  static TargetOptions OptionsFor(const std::string& host, const TlsTarget& target) {
    TargetOptions options;
    options.url = "https://" + host + ":" + target.port();
    options.model = "m";
    options.timeout_s = 10;
    return options;
  }

  TempFolder folder_;
  Identity identity_;
};

TEST_F(Tls, ATrustedCertificateCarriesTheStream) {
  const TlsTarget target(identity_, nullptr);
  for (const char* host : {"127.0.0.1", "localhost"}) {
    TargetOptions options = OptionsFor(host, target);
    options.ca_file = CaFile();
    const RequestRecord record = RecordOf(options);
    EXPECT_EQ(record.outcome, Outcome::kOk) << record.error;
    EXPECT_EQ(record.content_ns.size(), 1u);
    EXPECT_LE(record.sent_ns, record.connected_ns.value());
    EXPECT_LE(record.connected_ns.value(), record.headers_ns.value());
  }
}

TEST_F(Tls, AnUntrustedCertificateIsRefusedUnlessNoneIsLookedAt) {
  const TlsTarget target(identity_, nullptr);
  TargetOptions options = OptionsFor("127.0.0.1", target);
  const RequestRecord refused = RecordOf(options);
  EXPECT_EQ(refused.outcome, Outcome::kRefused);
  EXPECT_THAT(refused.error, HasSubstr("certificate"));
  options.insecure = true;
  EXPECT_EQ(RecordOf(options).outcome, Outcome::kOk);
}

TEST_F(Tls, ACertificateOfAnotherHostIsRefused) {
  const Identity other("DNS:elsewhere.example");
  other.WriteCertificate(CaFile());
  const TlsTarget target(other, nullptr);
  TargetOptions options = OptionsFor("127.0.0.1", target);
  options.ca_file = CaFile();
  const RequestRecord record = RecordOf(options);
  EXPECT_EQ(record.outcome, Outcome::kRefused);
  EXPECT_THAT(record.error, HasSubstr("mismatch"));
}

TEST_F(Tls, AServerThatAsksForACertificateIsShownOne) {
  const Identity client("DNS:client");
  const TlsTarget target(identity_, &client);
  TargetOptions options = OptionsFor("127.0.0.1", target);
  options.ca_file = CaFile();
  EXPECT_NE(RecordOf(options).outcome, Outcome::kOk);
  options.cert_file = folder_.path() + "/client.pem";
  options.key_file = folder_.path() + "/client.key";
  client.WriteCertificate(options.cert_file);
  client.WriteKey(options.key_file);
  const RequestRecord record = RecordOf(options);
  EXPECT_EQ(record.outcome, Outcome::kOk) << record.error;
}

TEST_F(Tls, PlainQuestionsGoOverItToo) {
  const TlsTarget target(identity_, nullptr);
  TargetOptions options = OptionsFor("127.0.0.1", target);
  options.ca_file = CaFile();
  const auto answer = Ask(options, {"GET", "/metrics", ""});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status, 200);
  EXPECT_THAT(answer->body, HasSubstr("[DONE]"));
  options.ca_file.clear();
  EXPECT_THAT(Ask(options, {"GET", "/metrics", ""}).status().message(), HasSubstr("certificate"));
}

}  // namespace
}  // namespace tramontane::load
