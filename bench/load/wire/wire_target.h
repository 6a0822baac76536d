// A target as its connections need it: taken apart, looked up and checked once, before a run.
// Immutable after Parse: any thread.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/load/target_options.h"
#include "bench/load/transport.h"
#include "bench/load/wire/answer_reader.h"
#include "kernels/core/status.h"

struct ssl_ctx_st;

namespace tramontane::load {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
};

class WireTarget {
 public:
  // INVALID_ARGUMENT names the option, its value and what it may be. A host that cannot be looked up is no
  // error here: resolve_error() says it, and each request finds a dead target.
  static StatusOr<std::shared_ptr<const WireTarget>> Parse(const TargetOptions& options);

  bool is_grpc() const { return scheme_.starts_with("grpc"); }
  bool has_tls() const { return scheme_ == "https" || scheme_ == "grpcs"; }
  const std::string& host() const { return host_; }
  const std::string& authority() const { return authority_; }                 // "host:8000", "[::1]:8000"
  const std::string& prefix() const { return prefix_; }                       // of paths: "" or "/some/where"
  const std::vector<SocketAddress>& addresses() const { return addresses_; }  // of HTTP; in order of trial
  const std::string& resolve_error() const { return resolve_error_; }
  ssl_ctx_st* tls() const { return tls_.get(); }  // null without TLS; of HTTP
  const TargetOptions& options() const { return options_; }
  const AnswerRules& answer_rules() const { return answer_rules_; }

  // The bytes of a generation, head and body.
  std::string RequestBytes(const OutgoingRequest& request) const;
  // Of a plain question; `path` from the root of the server.
  std::string QuestionBytes(const std::string& method, const std::string& path,
                            const std::string& body) const;

 private:
  explicit WireTarget(const TargetOptions& options)
      : options_(options), answer_rules_{options.count_tokens, options.api_key, options.timing} {}

  Status ParseUrl();
  Status CheckHeaders() const;
  Status ReadExtraBody();
  Status PrepareTls();
  void Resolve();
  std::string Head(const std::string& method, const std::string& path) const;

  TargetOptions options_;
  std::string scheme_;
  std::string host_;
  uint16_t port_ = 0;
  std::string authority_;
  std::string prefix_;
  std::vector<SocketAddress> addresses_;
  std::string resolve_error_;
  std::shared_ptr<ssl_ctx_st> tls_;
  std::string fixed_headers_;  // of every request
  std::string body_begin_;     // a JSON object up to its last member, with a comma where there is one
  bool sends_max_tokens_ = true;
  AnswerRules answer_rules_;
};

}  // namespace tramontane::load
