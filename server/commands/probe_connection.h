// ProbeConnection: one connection that asks a server one thing, in a bounded time, over TCP or TLS. One
// thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "kernels/core/status.h"
#include "server/base/file_descriptor.h"
#include "server/base/host_port.h"

struct ssl_ctx_st;
struct ssl_st;

namespace tramontane {

class ProbeConnection {
 public:
  using Clock = std::chrono::steady_clock;

  // `tls`: null: TCP. UNAVAILABLE: why there is none by `end`.
  static StatusOr<std::unique_ptr<ProbeConnection>> Open(const HostPort& where, ssl_ctx_st* tls,
                                                         Clock::time_point end);
  ~ProbeConnection();

  bool Send(const std::string& text);  // a short one
  // Some of what comes; "": no more, or not by the end.
  std::string Receive();

 private:
  ProbeConnection(std::unique_ptr<FileDescriptor> file, Clock::time_point end)
      : file_(std::move(file)), end_(end) {}
  Status Secure(const std::string& host, ssl_ctx_st* tls);
  // `operation`() of OpenSSL, until it has a result.
  template <typename Operation>
  int Finish(const Operation& operation);

  const std::unique_ptr<FileDescriptor> file_;
  const Clock::time_point end_;
  ssl_st* session_ = nullptr;  // null: TCP
};

}  // namespace tramontane
