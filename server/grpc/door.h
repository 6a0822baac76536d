// GrpcDoor: the gRPC server in front of an InferenceCore: its address, its connections, its methods.
// Start, SetServing and Stop from one thread, in this order.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/core/status.h"
#include "server/access/doorkeeper.h"
#include "server/access/tls_files.h"
#include "server/call/request_line.h"
#include "server/core/inference_core.h"

namespace tramontane {

struct GrpcDoorOptions {
  std::string address = "127.0.0.1:0";                // as ServerOptions::grpc_address
  int32_t writer_threads = 1;                         // hand results to gRPC
  int32_t max_streams = 2048;                         // of the core
  int32_t max_connections = 1024;                     // 0: no limit
  std::shared_ptr<const Doorkeeper> doorkeeper = {};  // null: nobody needs a key
  std::shared_ptr<const TlsFiles> tls = {};           // null: no TLS
  RequestLog request_log = {};                        // of all calls but those of the health service
  bool reflection = true;                             // is there
  int64_t memory_bytes = 256 << 20;                   // messages on their way; more: RESOURCE_EXHAUSTED
  double read_timeout = 30;                           // seconds for a call's message to come; 0: any time
  double write_timeout = 30;                          // seconds for a client to take a message; 0: any time
};

class GrpcDoor {
 public:
  // Listens; health is NOT_SERVING. UNAVAILABLE naming the setting, the address and the cause when that
  // fails. `core` is borrowed and outlives it.
  static StatusOr<std::unique_ptr<GrpcDoor>> Start(const GrpcDoorOptions& options, InferenceCore& core);
  ~GrpcDoor();  // as Stop

  // With the port that was really taken.
  const std::string& address() const;
  int32_t connections() const;  // that are open
  // Of the health service.
  void SetServing(bool serving);
  // Takes no more connections, ends what is still open after `grace`, and waits for gRPC.
  void Stop(std::chrono::milliseconds grace);

 private:
  struct Impl;
  explicit GrpcDoor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tramontane
