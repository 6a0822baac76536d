// Gateway: OpenAI's HTTP API in front of an InferenceClient.
//
// Start, Drain and Stop from one thread, in this order; the rest from any.
// Always: requests are checked and probes are answered on io threads, bodies are parsed and planned on
// handler threads, events are turned into bytes and written on io threads; none ever waits for the client of
// either side.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "server/gateway/field_limits.h"
#include "server/gateway/http.h"
#include "server/gateway/request_shapes.h"
#include "server/inference_client.h"

namespace tramontane {

// Every bound of the transport, with what happens there.
struct HttpLimits {
  int32_t max_connections = 16384;          // one more: the one that waits longest for a request is closed;
                                            // none does: 503 for the new one
  int64_t max_header_bytes = 32 << 10;      // request line and fields, a chunk's line; more: 431, closed
  int64_t max_body_bytes = 32 << 20;        // of one request, also decompressed; more: 413, closed
  int64_t max_held_body_bytes = 256 << 20;  // of all requests, until they are parsed; more: 503
  int64_t read_timeout_ms = 30'000;         // first byte to last of a request; longer: 408, connection closed
  int64_t idle_timeout_ms = 300'000;        // between two requests; longer: connection closed
  int64_t write_timeout_ms = 60'000;        // for the client to take 64 KiB of a write, or the rest of it;
                                            // longer: as if it had hung up
  int64_t last_words_ms = 2'000;            // for a stopping server's last answers to leave; then it hangs up
  int64_t silence_ms = 15'000;  // nothing written to a stream for so long: a comment keeps it open; 0: none
};

struct GatewayOptions {
  std::string address = "127.0.0.1:8000";  // HOST:PORT; port 0 takes a free one
  std::string version;                     // GET /version
  int32_t io_threads = 1;                  // sockets, events
  int32_t handler_threads = 2;             // JSON of requests
  HttpLimits limits = {};
  std::vector<std::string> cors_origins = {};  // whose pages may call besides local ones, and read; "*": all
  std::vector<std::string> hosts = {};         // names of this server besides localhost; "*": all
  // Any model's name is taken for the one that is served; otherwise unknown names are 404.
  bool any_model = false;
  // The text of GET /metrics; null: 404.
  std::function<std::string()> metrics = {};
  // Fields that no table knows are refused; otherwise they are ignored, and told in x-tramontane-ignored.
  bool strict_fields = true;
  FieldLimits field_limits = {};  // of the servers behind it
};

// What endpoints are given besides the exchange. Outlives every exchange.
struct GatewayContext {
  InferenceClient& client;
  const GatewayOptions& options;
  const RequestShapes* shapes = &StandardShapes();
};

// An endpoint. On the thread that its route names; may answer later, from any thread. A std::exception that
// leaves it is a 500.
using Endpoint = void (*)(const GatewayContext& context, const std::shared_ptr<HttpExchange>& exchange);

class Gateway {
 public:
  // Listens and answers. `client` must outlive it. UNAVAILABLE naming the address and the cause when that
  // fails.
  static StatusOr<std::unique_ptr<Gateway>> Start(GatewayOptions options, InferenceClient& client);
  ~Gateway();  // as Stop

  // "127.0.0.1:8000", with the port that was really taken.
  const std::string& address() const;

  // From now on POSTs get 503 and connections close after their answer; waits until what was accepted is
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
