// Transport to an OpenAI-style server over HTTP/1.1, with or without TLS: some threads, each with a poll set
// of its own. Connections are kept and used again; a request goes to the threads in turn.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "bench/load/transport.h"
#include "bench/load/wire/http_loop.h"
#include "bench/load/wire/wire_target.h"

namespace tramontane::load {

class HttpTransport final : public Transport {
 public:
  explicit HttpTransport(const std::shared_ptr<const WireTarget>& target);

  void Send(OutgoingRequest request, Done done) override;
  void Abort() override;  // not from a `done`
  ClientLoad Load() override;

 private:
  std::vector<std::unique_ptr<HttpLoop>> loops_;
  std::atomic<size_t> next_ = 0;

  std::mutex load_mutex_;
  std::vector<int64_t> cpu_before_ns_;  // of each loop, at the last Load; under load_mutex_
  int64_t load_before_ns_;              // under load_mutex_
};

}  // namespace tramontane::load
