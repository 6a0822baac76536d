// RpcError: why a call was refused or ended, in full, before it becomes a grpc::Status with details.
// A plain value. Any thread. No gRPC in here, so that conversion is tested without it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/status.h"

namespace tramontane {

struct FieldViolation {
  std::string field;        // path in the request: "sampling.top_p"
  std::string description;  // "is 1.5, the most is 1"
};

struct RpcError {
  StatusCode code = StatusCode::kOk;
  std::string message;
  std::string reason;                       // ErrorInfo: a constant for programs, "CONTEXT_LENGTH_EXCEEDED"
  std::map<std::string, std::string> info;  // ErrorInfo: numbers behind the reason
  std::vector<FieldViolation> violations;
  std::string missing_model;   // NOT_FOUND: the name that was asked for
  int64_t retry_after_ms = 0;  // above 0: a retry can help after this time

  bool ok() const { return code == StatusCode::kOk; }
};

// An error from below the server: its field becomes a violation; where a retry can help, it says so.
RpcError ToRpcError(const Status& status);

// One refused field. `path` as in the .proto.
RpcError FieldError(std::string path, std::string description);

// RESOURCE_EXHAUSTED: a bound of the server was reached; trying again later can help.
RpcError BusyError(std::string reason, std::string message);
// UNAVAILABLE: this server cannot, another one or the same one later can.
RpcError UnavailableError(std::string reason, std::string message);

}  // namespace tramontane
