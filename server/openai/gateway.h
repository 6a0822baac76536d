// Gateway: OpenAI's HTTP API in front of an InferenceClient.
//
// Start, Drain and Stop from one thread, in this order; the rest from any.
// Always: requests are checked and probes are answered on io threads, bodies are parsed and planned on
// handler threads, events are turned into bytes and written on io threads; none ever waits for the client of
// either side.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "server/core/field_limits.h"
#include "server/core/inference_client.h"
#include "server/core/pending_text.h"
#include "server/core/rpc_error.h"
#include "server/core/trace_text.h"
#include "server/http/http.h"
#include "server/http/limits.h"
#include "server/openai/http_counts.h"
#include "server/openai/request_shapes.h"

namespace tramontane {

struct GatewayOptions {
  std::string address = "127.0.0.1:8000";            // HOST:PORT; port 0 takes a free one
  std::string version;                               // GET /version
  int32_t io_threads = kDefaultIoThreads;            // sockets, events
  int32_t handler_threads = kDefaultHandlerThreads;  // JSON of requests
  HttpLimits limits = {};
  std::vector<std::string> cors_origins = {};  // whose pages may call besides local ones, and read; "*": all
  std::vector<std::string> hosts = {};         // names of this server besides localhost; "*": all
  // Any model's name is taken for the one that is served; otherwise unknown names are 404.
  bool any_model = false;
  // The text of GET /metrics, to which the counts of requests are added; null: 404.
  std::function<std::string()> metrics = {};
  // Begins to record what GET /debug/trace tells; null where there is no model yet. Without it /debug/* is
  // 404.
  std::function<std::unique_ptr<TraceText>()> trace = {};
  // Asks for what GET /debug/kv tells; null, and why, where that cannot be asked. Without it the path is 404.
  std::function<std::unique_ptr<PendingText>(RpcError* refusal)> kv_tables = {};
  // Told of each answer when it begins, on any thread, and maybe after the gateway's end; must not wait.
  // Null: nobody is.
  std::function<void(const HttpRequest& request, int status)> on_answer = {};
  // Fields that no table knows are refused; otherwise they are ignored, and told in x-tramontane-ignored.
  bool strict_fields = true;
  FieldLimits field_limits = {};  // of the servers behind it
};

// What endpoints are given besides the exchange. Outlives every exchange.
struct GatewayContext {
  InferenceClient& client;
  const GatewayOptions& options;
  const HttpCounts& counts;
  const std::atomic<bool>& draining;
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
