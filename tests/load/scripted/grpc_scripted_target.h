// A scripted server that speaks gRPC. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "kernels/core/status.h"
#include "tests/load/scripted/scripted_target.h"

namespace tramontane::load {

// A Tramontane server over gRPC that streams by script: as many Deltas as `events`, the first after
// `ttft_ns`, then one each `gap_ns`.
struct GrpcScript {
  int64_t ttft_ns = 0;
  int64_t gap_ns = 0;
  int32_t events = 1;
};

class GrpcScriptedTarget {
 public:
  virtual ~GrpcScriptedTarget() = default;
  virtual std::string url() const = 0;  // "grpc://127.0.0.1:43210"
  // By request id: a write for each Delta, stamped just before it was handed to gRPC.
  virtual std::map<std::string, ScriptLog> Logs() const = 0;
};

StatusOr<std::unique_ptr<GrpcScriptedTarget>> StartGrpcTarget(const GrpcScript& script);

}  // namespace tramontane::load
