// GrpcClient: a thin, blocking client of tramontane.v1.Inference, for `tramontane generate`.
// Any thread; calls may overlap.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/core/status.h"
#include "server/remote/client_tls.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

class GrpcClient {
 public:
  // "127.0.0.1:50051"; connects at the first call. `api_key`: goes with each call; "": none.
  explicit GrpcClient(const std::string& address, std::string api_key = {}, const ClientTls& tls = {});
  ~GrpcClient();

  // Streams a request: `on_event` is called for each event, in order, on this thread; false from it cancels
  // the call. The status is the call's; its field is the first one at fault. INTERNAL: the server says what
  // it may not.
  using OnEvent = std::function<bool(const v1::GenerateResponse& event)>;
  Status Generate(const v1::GenerateRequest& request, const OnEvent& on_event);

  // By the health service. UNAVAILABLE: nobody answers in time or, with `ready`, it is not SERVING.
  Status CheckHealth(bool ready, int timeout_ms);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tramontane
