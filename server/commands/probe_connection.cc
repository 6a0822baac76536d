#include "server/commands/probe_connection.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace tramontane {
namespace {

bool WaitFor(int file, short events, ProbeConnection::Clock::time_point end) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(end - ProbeConnection::Clock::now());
  pollfd state = {file, events, 0};
  return poll(&state, 1, static_cast<int>(std::max<int64_t>(0, left.count()))) > 0;
}

StatusOr<std::unique_ptr<FileDescriptor>> Connect(const HostPort& where,
                                                  ProbeConnection::Clock::time_point end) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int fault = getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found);
  if (fault != 0) return Unavailable(gai_strerror(fault));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  std::string why = "nobody answers";
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    auto file = std::make_unique<FileDescriptor>(
        socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address->ai_protocol));
    if (connect(file->get(), address->ai_addr, address->ai_addrlen) == 0 || errno == EINPROGRESS) {
      int error = 0;
      socklen_t size = sizeof error;
      if (WaitFor(file->get(), POLLOUT, end) &&
          getsockopt(file->get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0) {
        return file;
      }
      why = error != 0 ? std::strerror(error) : "no connection in time";
    } else {
      why = std::strerror(errno);
    }
  }
  return Unavailable(why);
}

std::string WhyNoTls(SSL* session) {
  const long verified = SSL_get_verify_result(session);
  const bool is_distrust = verified != X509_V_OK && SSL_get_verify_mode(session) != SSL_VERIFY_NONE;
  if (is_distrust) return std::string("the certificate: ") + X509_verify_cert_error_string(verified);
  const char* reason = ERR_reason_error_string(ERR_peek_error());
  return std::string("no TLS: ") + (reason != nullptr ? reason : "no handshake in time");
}

}  // namespace

StatusOr<std::unique_ptr<ProbeConnection>> ProbeConnection::Open(const HostPort& where, ssl_ctx_st* tls,
                                                                 Clock::time_point end) {
  TM_ASSIGN_OR_RETURN(std::unique_ptr<FileDescriptor> file, Connect(where, end));
  std::unique_ptr<ProbeConnection> connection(new ProbeConnection(std::move(file), end));
  if (tls != nullptr) TM_RETURN_IF_ERROR(connection->Secure(where.host, tls));
  return connection;
}

ProbeConnection::~ProbeConnection() { SSL_free(session_); }

Status ProbeConnection::Secure(const std::string& host, ssl_ctx_st* tls) {
  signal(SIGPIPE, SIG_IGN);  // OpenSSL writes as to a file
  session_ = SSL_new(tls);
  SSL_set_fd(session_, file_->get());
  if (IsIpAddress(host)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session_), host.c_str());
  } else {
    SSL_set_tlsext_host_name(session_, host.c_str());
    SSL_set1_host(session_, host.c_str());
  }
  return Finish([this] { return SSL_connect(session_); }) == 1 ? Status() : Unavailable(WhyNoTls(session_));
}

template <typename Operation>
int ProbeConnection::Finish(const Operation& operation) {
  while (true) {
    ERR_clear_error();
    const int result = operation();
    if (result > 0) return result;
    const int why = SSL_get_error(session_, result);
    const bool waits = why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE;
    if (!waits || !WaitFor(file_->get(), why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, end_)) return result;
  }
}

bool ProbeConnection::Send(const std::string& text) {
  const int size = static_cast<int>(text.size());
  if (session_ == nullptr) return send(file_->get(), text.data(), text.size(), MSG_NOSIGNAL) == size;
  return Finish([&] { return SSL_write(session_, text.data(), size); }) == size;
}

std::string ProbeConnection::Receive() {
  char bytes[4096];
  int64_t got = 0;
  if (session_ != nullptr) {
    got = Finish([&] { return SSL_read(session_, bytes, sizeof bytes); });
  } else if (WaitFor(file_->get(), POLLIN, end_)) {
    got = recv(file_->get(), bytes, sizeof bytes, 0);
  }
  return std::string(bytes, static_cast<size_t>(std::max<int64_t>(0, got)));
}

}  // namespace tramontane
