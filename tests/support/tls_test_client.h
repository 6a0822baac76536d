// A blocking HTTP/1 client over TLS. One thread at a time. Nothing waits longer than a minute.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tests/support/http_test_client.h"
#include "tests/support/test_certificates.h"

struct ssl_st;

namespace tramontane {

class TlsTestClient {
 public:
  struct Options {
    std::string ca = {};                // PEM of whom it trusts; "": anybody
    TestPair pair = {};                 // its own certificate; empty: it has none
    int version = 0;                    // TLS1_2_VERSION: that alone; 0: what both have
    std::string alpn = "\x08http/1.1";  // as on the wire
    HttpTestClient::Options socket = {};
  };
  // Connects and shakes hands.
  TlsTestClient(const std::string& address, const Options& options);
  ~TlsTestClient();
  TlsTestClient(const TlsTestClient&) = delete;
  TlsTestClient& operator=(const TlsTestClient&) = delete;

  // Where TLS 1.3's client has sent its certificate, a server that does not take it says so at the first
  // read.
  bool established() const { return established_; }
  std::string server_name() const;  // the common name in the server's certificate
  std::string alpn() const;         // what was agreed
  int version() const;
  bool has_heard_goodbye() const;  // the server has said that it sends no more

  bool Send(std::string_view bytes);
  // What comes until `text` was in it, or the end.
  std::string ReadUntil(std::string_view text);
  std::string ReadToEnd();
  // One request; it must tell the server to close.
  HttpReply Ask(const std::string& request);
  // Says that it sends no more.
  void ShutdownSend();

 private:
  bool Fill();

  HttpTestClient socket_;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> session_;
  bool established_ = false;
  std::string buffer_;
};

}  // namespace tramontane
