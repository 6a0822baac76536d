// FakeBackend: a server behind the gateway that says what a test likes, bytes that are no message included,
// and calls itself healthy.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/call/rpc_error.h"

namespace tramontane {

class FakeBackend {
 public:
  struct Answer {
    std::vector<std::string> messages = {};  // one of a unary call
    bool endless = false;                    // the last one again and again, until the call is cancelled
    bool hangs = false;                      // then nothing, until the call is cancelled
    RpcError status = {};                    // with its details, as servers send it
    std::string bare_status = {};            // in place of it: UNAVAILABLE with this sentence and no details
  };
  // `method` is "Generate"; `request` the bytes of the message. On a thread of gRPC's.
  using Script = std::function<Answer(const std::string& method, const std::string& request)>;

  explicit FakeBackend(Script script);
  ~FakeBackend();

  const std::string& address() const;
  int64_t calls(const std::string& method) const;  // so far
  int64_t cancelled() const;                       // calls that ended so

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tramontane
