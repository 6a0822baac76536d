// InferenceService: tramontane.v1.Inference over gRPC's callback API.
//
// Which thread does what:
//   gRPC's threads     receive, hand the bytes to the worker pool, write the next message when one is written
//   worker pool        parses, checks, tokenises, submits to the engine (InferenceCore's: HTTP shares it)
//   engine's output    fills TokenStreams and wakes a writer; never writes
//   writer pool        takes what a TokenStream holds and starts the write
// One message of a stream is being written at a time; what comes meanwhile is joined in its TokenStream, so a
// slow reader costs its own latency and nobody's memory.
#pragma once

#include <cstdint>
#include <memory>

#include "server/core/inference_core.h"

namespace grpc {
class Service;
}

namespace tramontane {

struct InferenceServiceOptions {
  int32_t writer_threads = 1;  // hand results to gRPC
  int32_t max_streams = 2048;  // of the core; writers that may wait
};

class InferenceService {
 public:
  // `core` is borrowed and outlives it.
  InferenceService(const InferenceServiceOptions& options, InferenceCore& core);
  // REQUIRES: the gRPC server that it was registered with has shut down.
  ~InferenceService();

  grpc::Service* grpc_service();

  class Impl;  // in the .cc, where the calls know it

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tramontane
