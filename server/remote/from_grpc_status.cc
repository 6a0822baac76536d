#include "server/remote/from_grpc_status.h"

#include <utility>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace tramontane {

RpcError FromGrpcStatus(const grpc::Status& status) {
  RpcError error;
  error.code = static_cast<StatusCode>(status.error_code());
  error.sentence = status.error_message();
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return error;
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::BadRequest bad_request;
    google::rpc::ResourceInfo resource;
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo retry;
    if (any.UnpackTo(&bad_request)) {
      if (bad_request.field_violations().empty()) continue;
      const auto& violation = bad_request.field_violations(0);  // servers of ours name one
      error.field = violation.field();
      error.field_description = violation.description();
      error.set_message(status.error_message());
    } else if (any.UnpackTo(&resource)) {
      error.missing_model = resource.resource_name();
    } else if (any.UnpackTo(&info)) {
      error.reason = info.reason();
      error.info.insert(info.metadata().begin(), info.metadata().end());
    } else if (any.UnpackTo(&retry)) {
      error.retry_after_ms = retry.retry_delay().seconds() * 1000 + retry.retry_delay().nanos() / 1'000'000;
    }
  }
  return error;
}

}  // namespace tramontane
