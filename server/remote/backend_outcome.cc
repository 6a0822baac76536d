#include "server/remote/backend_outcome.h"

#include <spdlog/spdlog.h>

#include "server/remote/from_grpc_status.h"

namespace tramontane {

RpcError BackendError(const grpc::Status& status, const std::string& address) {
  const bool refuses_gateway = status.error_code() == grpc::StatusCode::UNAUTHENTICATED;
  if (HasDetails(status) && !refuses_gateway) return FromGrpcStatus(status);
  switch (status.error_code()) {
    case grpc::StatusCode::CANCELLED:
      return ToRpcError(Status(StatusCode::kCancelled, "the request was cancelled"));
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return ToRpcError(Status(StatusCode::kDeadlineExceeded, "Deadline Exceeded"));
    case grpc::StatusCode::UNAVAILABLE:
      spdlog::warn("the server {} is gone: {}", address, status.error_message());
      return UnavailableError("BACKEND_LOST", "the server behind the gateway is gone");
    default:
      return BadGatewayError(status.error_message(), address);
  }
}

RpcError BadGatewayError(const std::string& fault, const std::string& address) {
  spdlog::error("the server {} answers what it may not: {}", address, fault);
  RpcError error = ToRpcError(Internal("the server behind the gateway gave a faulty answer"));
  error.reason = "BAD_GATEWAY";
  return error;
}

RpcError NoBackendError() {
  return UnavailableError("NO_BACKEND", "no server behind the gateway can take the request");
}

}  // namespace tramontane
