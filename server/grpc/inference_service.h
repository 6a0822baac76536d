// InferenceService: the methods of the gRPC door: tramontane.v1.Inference, and gRPC's health and reflection.
//
// Which thread does what:
//   gRPC's threads     receive, hand the bytes to the worker pool, write the next message when one is written
//   worker pool        parses, checks, tokenises, submits to the engine (InferenceCore's: HTTP shares it)
//   engine's output    fills TokenStreams and wakes a writer; never writes
//   writer pool        takes what a TokenStream holds and starts the write
//   GrpcAcceptor           the clocks of calls
// One message of a stream is being written at a time; what comes meanwhile is joined in its TokenStream, so a
// slow reader costs its own latency and nobody's memory.
//
// All methods are generic (bytes, not messages): a call is there from its header on, so that what has not
// sent its message yet is counted too, and has a clock; and what does not parse is told why.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "server/base/worker_pool.h"
#include "server/core/inference_core.h"
#include "server/grpc/health.h"
#include "server/grpc/raw_call.h"

namespace tramontane {

struct InferenceServiceOptions {
  int32_t writer_threads = 1;  // hand results to gRPC
  int32_t max_streams = 2048;  // of the core; writers that may wait
  bool reflection = true;      // is there
};

class InferenceService final : public grpc::CallbackGenericService {
 public:
  // All are borrowed and outlive it.
  InferenceService(const InferenceServiceOptions& options, InferenceCore& core, GrpcCalls& calls,
                   Health& health);
  // REQUIRES: the gRPC server that it was registered with has shut down.
  ~InferenceService() override = default;

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

 private:
  using MakeCall = std::function<std::shared_ptr<RawCall>(grpc::GenericCallbackServerContext* context)>;

  GrpcCalls& calls_;
  WorkerPool writers_;
  std::map<std::string, MakeCall, std::less<>> methods_;  // "/tramontane.v1.Inference/Generate"
};

}  // namespace tramontane
