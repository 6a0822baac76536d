// Gateway: the HTTP API in front of an InferenceClient.
//
// Start, Leave, Drain and Stop from one thread, in this order; the rest from any.
// Always: requests are checked and probes are answered on io threads, bodies are parsed and planned on
// handler threads, events are turned into bytes on io threads, or on handler threads where that takes long,
// and written on io threads; none ever waits for the client of either side.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "server/api/routes.h"
#include "server/api/shared/gateway_context.h"
#include "server/call/inference_client.h"

namespace tramontane {

class Gateway {
 public:
  // Listens and answers. `client` and `routes` must outlive it. UNAVAILABLE naming the address and the cause
  // when that fails.
  static StatusOr<std::unique_ptr<Gateway>> Start(GatewayOptions options, InferenceClient& client,
                                                  const std::vector<Route>& routes = Routes());
  ~Gateway();  // as Stop

  // "127.0.0.1:8000", with the port that was really taken.
  const std::string& address() const;
  int64_t connections() const;      // that are open
  int64_t held_body_bytes() const;  // of requests that are not yet parsed

  // From now on /ready is 503 and connections close after their answer; requests are taken all the same.
  void Leave();

  // As Leave, and from now on POSTs get 503; waits until what was accepted is
  // answered, at most `timeout_ns`. False when something is still open then.
  bool Drain(int64_t timeout_ns);

  // What is still open is told that the server stops: a stream by an error event and its end, the rest by
  // 503; their calls are cancelled. Then closes every connection, and waits for the threads.
  void Stop();

 private:
  struct Impl;
  explicit Gateway(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tramontane
