// What the gateway is told when it starts, and what endpoints are given of it besides the exchange.
// Plain values; any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/api/shared/gateway_exchange.h"
#include "server/api/shared/http_counts.h"
#include "server/base/held_bytes.h"
#include "server/call/field_limits.h"
#include "server/call/inference_client.h"
#include "server/call/request_line.h"
#include "server/call/rpc_error.h"
#include "server/http/http.h"
#include "server/http/limits.h"
#include "server/watch/pending_text.h"
#include "server/watch/request_counts.h"
#include "server/watch/trace_text.h"

namespace tramontane {

class Doorkeeper;
struct RequestShapes;
class TlsFiles;

struct GatewayOptions {
  std::string address = "127.0.0.1:8000";            // HOST:PORT; port 0 takes a free one
  std::string version;                               // GET /version
  int32_t io_threads = kDefaultIoThreads;            // sockets, events
  int32_t handler_threads = kDefaultHandlerThreads;  // JSON of requests
  HttpLimits limits = {};
  ByteBudget* unread_answers =
      nullptr;  // of all answers that clients have not taken yet; null: one of its own
  std::vector<std::string> cors_origins = {};  // whose pages may call besides local ones, and read; "*": all
  std::vector<std::string> hosts = {};         // names of this server besides localhost; "*": all
  // Any model's name is taken for the one that is served; otherwise unknown names are 404.
  bool any_model = false;
  // The text of GET /metrics, to which the counts of requests are added; null: 404.
  std::function<std::string()> metrics = {};
  // It has the probes, /metrics and /debug/*, and nothing else.
  bool is_admin_door = false;
  // Begins to record what GET /debug/trace tells; null where there is no model yet. Without it /debug/* is
  // 404.
  std::function<std::unique_ptr<TraceText>()> trace = {};
  // Asks for what GET /debug/kv tells; null, and why, where that cannot be asked. Without it the path is 404.
  std::function<std::unique_ptr<PendingText>(RpcError* refusal)> kv_tables = {};
  // And GET /debug/requests.
  std::function<std::unique_ptr<PendingText>(RpcError* refusal)> live_requests = {};
  RequestLog request_log = {};  // of every request; told of the last maybe after the gateway's end
  // Where answers are counted, for all doors of a server; null: the gateway has its own.
  std::shared_ptr<HttpCounts> http_counts = {};
  std::shared_ptr<RequestCounts> request_counts = {};
  bool counts_events = false;  // tokens and stages, too, by what is answered: there is no engine here
  // Who asks; null: everybody by address, without a key.
  std::shared_ptr<const Doorkeeper> doorkeeper = {};
  std::shared_ptr<const TlsFiles> tls = {};  // null: no TLS
  bool protect_metrics = false;              // GET /metrics needs a key too
  // Fields that no table knows are refused; otherwise they are ignored, and told in x-tramontane-ignored.
  bool strict_fields = true;
  bool per_request_metrics = false;  // answers have `metrics`, whoever asks
  FieldLimits field_limits = {};     // of the servers behind it
};

// What endpoints are given besides the exchange. Outlives every exchange.
struct GatewayContext {
  InferenceClient& client;
  const GatewayOptions& options;
  const std::atomic<bool>& leaving;       // /ready is 503: nothing new should be sent here
  const RequestShapes* shapes = nullptr;  // null: those of FieldLimits as built
};

// An endpoint. On the thread that its route names; may answer later, from any thread. A std::exception that
// leaves it is a 500.
using Endpoint = void (*)(const GatewayContext& context, const std::shared_ptr<GatewayExchange>& exchange);

}  // namespace tramontane
