// Server: the front of one engine, gRPC and HTTP. Binds first, so that a taken port is known before weights
// load; serves once it is given a model; drains; stops.
//
// Start, Serve, Leave, Drain and Stop from one thread, in this order; the rest from any thread.
// Always: until Serve, requests get UNAVAILABLE and health is NOT_SERVING; the engine must run (step) until
// Stop has returned, for what is open ends through it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "server/call/field_limits.h"
#include "server/call/inference_client.h"
#include "server/call/request_line.h"
#include "server/call/served_model.h"
#include "server/http/limits.h"
#include "server/sessions/session_folder.h"
#include "server/sessions/session_store.h"
#include "server/watch/trace_text.h"

namespace tramontane {

class Doorkeeper;
class TlsFiles;

struct ServerOptions {
  std::string grpc_address = "127.0.0.1:50051";     // HOST:PORT; port 0 takes a free one. Also "unix:PATH"
  std::string http_address = {};                    // the same for HTTP; "": no HTTP
  std::vector<std::string> http_cors_origins = {};  // as GatewayOptions::cors_origins
  std::vector<std::string> http_hosts = {};         // as GatewayOptions::hosts
  int32_t http_io_threads = kDefaultIoThreads;
  int32_t http_handler_threads = kDefaultHandlerThreads;
  HttpLimits http_limits = {};
  std::string admin_address = {};    // HOST:PORT of the admin door; "": there is none
  bool any_model = false;            // HTTP takes every model's name for the one that is served
  bool per_request_metrics = false;  // answers of HTTP have `metrics`
  bool strict_fields = true;         // HTTP refuses fields that it does not know
  FieldLimits field_limits = {};     // of the engine that will serve
  int32_t worker_threads = 2;        // tokenising, chat rendering, detokenising
  int32_t compiler_threads = 4;      // for requests with constraints
  int32_t max_queued_work = 2048;    // inputs waiting for them; one more: RESOURCE_EXHAUSTED
  int32_t writer_threads = 1;        // hand results to gRPC
  double step_timeout = 300;         // seconds; no step with work for longer: unhealthy; 0: never
  std::shared_ptr<const Doorkeeper> doorkeeper = {};     // of both doors; null: nobody needs a key
  std::shared_ptr<const TlsFiles> tls = {};              // of both doors; null: no TLS
  bool grpc_reflection = true;                           // the service that tells clients what there is
  RequestLog request_log = {};                           // of both doors
  bool protect_metrics = false;                          // GET /metrics needs one too
  bool legacy_metrics = false;                           // and has three names that vLLM has given up
  int64_t max_unread_answer_bytes = int64_t{256} << 20;  // of all answers that clients have not taken yet
  int32_t max_streams = 2048;  // Generate calls open at once; one more: RESOURCE_EXHAUSTED
  SessionStoreOptions sessions = {};
  std::string session_dir = {};  // "": none are saved
  SessionDirLimits session_dir_limits = {};
  int64_t grpc_memory_bytes = 256 << 20;  // messages of gRPC on their way; more: RESOURCE_EXHAUSTED
  int32_t grpc_max_connections = 1024;    // 0: no limit
  double grpc_read_timeout = 30;          // seconds for a call's message to come; 0: any time
  double grpc_write_timeout = 30;         // seconds for a client to take a message; 0: any time
};

class Server {
 public:
  // Listens. UNAVAILABLE naming the setting, the address and the cause when that fails.
  static StatusOr<std::unique_ptr<Server>> Start(ServerOptions options);
  ~Server();  // as Stop

  // Requests are answered and health is SERVING from now on.
  void Serve(const ServedModel& model);

  // "127.0.0.1:50051", with the port that was really taken.
  const std::string& grpc_address() const;
  std::string http_address() const;   // "": no HTTP
  std::string admin_address() const;  // "": no admin door

  // Steps and requests as they end from now on. REQUIRES: Serve was called.
  std::unique_ptr<TraceText> StartTrace();

  // Calls from within this process, behind the same checks and limits as gRPC. Until Stop. Calls that are
  // open then are the caller's to cancel.
  InferenceClient& client();

  // Health is NOT_SERVING and /ready 503 from now on; requests are taken all the same.
  void Leave();

  // As Leave, and new requests get UNAVAILABLE from now on; waits until what was accepted has
  // finished, at most `timeout_ns`. False when something still runs then.
  bool Drain(int64_t timeout_ns);

  // Ends what still runs, with UNAVAILABLE, and closes every connection. When it returns nothing uses the
  // model.
  void Stop();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tramontane
