#include "server/grpc/grpc_status.h"

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace tramontane {
namespace {

constexpr size_t kMaxMessageBytes =
    1024;  // clients take 8 KiB of metadata in all, and the message is in it twice

std::string Shortened(const std::string& message) {
  return message.size() <= kMaxMessageBytes ? message : message.substr(0, kMaxMessageBytes) + "...";
}

}  // namespace

grpc::Status ToGrpcStatus(const RpcError& error) {
  if (error.ok()) return grpc::Status::OK;
  const std::string message = Shortened(error.message);

  google::rpc::Status details;
  details.set_code(static_cast<int>(error.code));
  details.set_message(message);
  if (!error.violations.empty()) {
    google::rpc::BadRequest bad_request;
    for (const FieldViolation& violation : error.violations) {
      auto* proto = bad_request.add_field_violations();
      proto->set_field(violation.field);
      proto->set_description(Shortened(violation.description));
      proto->set_reason(error.reason);
    }
    details.add_details()->PackFrom(bad_request);
  }
  if (!error.missing_model.empty()) {
    google::rpc::ResourceInfo resource;
    resource.set_resource_type("model");
    resource.set_resource_name(error.missing_model);
    details.add_details()->PackFrom(resource);
  }
  if (!error.reason.empty()) {
    google::rpc::ErrorInfo info;
    info.set_reason(error.reason);
    info.set_domain("tramontane");
    info.mutable_metadata()->insert(error.info.begin(), error.info.end());
    details.add_details()->PackFrom(info);
  }
  if (error.retry_after_ms > 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(error.retry_after_ms / 1000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(error.retry_after_ms % 1000) * 1'000'000);
    details.add_details()->PackFrom(retry);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(error.code), message, details.SerializeAsString());
}

}  // namespace tramontane
