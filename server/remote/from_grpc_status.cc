#include "server/remote/from_grpc_status.h"

#include <algorithm>
#include <utility>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace tramontane {
namespace {

constexpr int64_t kMostRetrySeconds = 3600;

}  // namespace

bool HasDetails(const grpc::Status& status) {
  google::rpc::Status details;
  return details.ParseFromString(status.error_details()) && details.code() == status.error_code();
}

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
      const int64_t seconds = std::clamp<int64_t>(retry.retry_delay().seconds(), 0, kMostRetrySeconds);
      const int64_t nanos = std::clamp(retry.retry_delay().nanos(), 0, 999'999'999);
      error.retry_after_ms = seconds * 1000 + nanos / 1'000'000;
    }
  }
  return error;
}

}  // namespace tramontane
