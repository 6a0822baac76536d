// TLS between a socket that someone else reads and writes and the bytes that matter: so that a stamp is taken
// when the socket's read returns, before anything is decrypted.
// One thread at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "bench/load/target_options.h"
#include "kernels/core/status.h"

struct ssl_st;
struct ssl_ctx_st;

namespace tramontane::load {

// The client's side: --ca, --cert, --key, --insecure. Errors name the file.
StatusOr<std::shared_ptr<ssl_ctx_st>> MakeTlsContext(const TargetOptions& options);

class TlsSession {
 public:
  // Checks the certificate against `host` unless the context looks at none, and names the host to the server
  // where it is a name.
  TlsSession(ssl_ctx_st* context, const std::string& host);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Goes on with the handshake as far as the bytes reach. False: it failed, and error() says why.
  bool Handshake();
  bool established() const { return established_; }

  // Bytes as they came from the socket.
  void Receive(std::string_view encrypted);
  // Appends what can be decrypted to `plain`. False: the peer broke or ended the session.
  bool Decrypt(std::string* plain);
  // REQUIRES: established().
  void Encrypt(std::string_view plain);
  // What is to be sent, handed over.
  void TakeOutput(std::string* out);

  const std::string& error() const { return error_; }

 private:
  void Fail(int result);

  ssl_st* session_;
  bool established_ = false;
  std::string error_;
};

}  // namespace tramontane::load
