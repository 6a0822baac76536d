// How a run reaches its target: the one place where the rest of the load tool meets sockets. Main thread.
#pragma once

#include <memory>
#include <string>

#include "bench/load/target_options.h"
#include "bench/load/transport.h"
#include "kernels/core/status.h"

namespace tramontane::load {

// By the scheme of the URL. Opens nothing yet: a dead target is what its requests find. An error is a fault
// of the options: a URL that is none, a certificate that cannot be read, a body that is not a JSON object.
StatusOr<std::unique_ptr<Transport>> Connect(const TargetOptions& options);

// The name of the first model that the target serves; asked where the user gave none. UNAVAILABLE: a dead
// target; INVALID_ARGUMENT: one that is there and names none, or one that cannot be shown.
StatusOr<std::string> FirstServedModel(const TargetOptions& options);

// One plain question to a target over HTTP, outside of a measured run: /tokenize, /detokenize, /metrics.
struct PlainQuestion {
  std::string method = "GET";
  std::string path;  // from the root of the server: "/metrics"
  std::string body;  // JSON; empty with GET
};
struct PlainAnswer {
  int32_t status = 0;
  std::string body;
};

// Blocks until the answer is whole, timeout_s at most. UNIMPLEMENTED where the target speaks gRPC.
StatusOr<PlainAnswer> Ask(const TargetOptions& options, const PlainQuestion& question);

}  // namespace tramontane::load
