// InferenceService: tramontane.v1.Inference over gRPC's callback API.
//
// Which thread does what:
//   gRPC's threads     receive, hand the bytes to the worker pool, write the next message when one is written
//   worker pool        parses, checks, tokenises, submits to the engine
//   engine's output    fills TokenStreams and wakes a writer; never writes
//   writer pool        takes what a TokenStream holds and starts the write
// One message of a stream is being written at a time; what comes meanwhile is joined in its TokenStream, so a
// slow reader costs its own latency and nobody's memory.
#pragma once

#include <cstdint>
#include <memory>

#include "server/served_model.h"
#include "server/server.h"

namespace grpc {
class Service;
}

namespace tramontane {

inline constexpr int64_t kMaxMessageBytes = int64_t{64} << 20;  // of a request

class InferenceService {
 public:
  explicit InferenceService(const ServerOptions& options);
  // REQUIRES: the gRPC server that it was registered with has shut down.
  ~InferenceService();

  grpc::Service* grpc_service();

  // Every call is refused with UNAVAILABLE until this. Once.
  void Serve(const ServedModel& model);
  // Generate calls that arrive from now on are refused with UNAVAILABLE.
  void StartDraining();
  // True once no Generate call is open; false when that took longer than the timeout.
  bool WaitForStreams(int64_t timeout_ns);

  class Impl;  // in the .cc, where the calls know it

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tramontane
