#include "server/grpc/grpc_status.h"

#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "kernels/core/utf8.h"

namespace tramontane {
namespace {

constexpr size_t kMaxTextBytes = 1024;  // clients take 8 KiB of metadata in all, and a message is in it twice

// Text as the details can hold it: errors quote what was sent, and a message with a string that is not UTF-8
// is one that clients cannot parse.
std::string DetailText(const std::string& text) {
  std::string clean = ReplaceInvalidUtf8(text);
  if (clean.size() <= kMaxTextBytes) return clean;
  clean.resize(kMaxTextBytes);
  clean.resize(clean.size() - TruncatedUtf8Bytes(clean));
  return clean + "...";
}

}  // namespace

grpc::Status ToGrpcStatus(const RpcError& error) {
  if (error.ok()) return grpc::Status::OK;
  const std::string message = DetailText(error.message());

  google::rpc::Status details;
  details.set_code(static_cast<int>(error.code));
  details.set_message(message);
  if (!error.field.empty()) {
    google::rpc::BadRequest bad_request;
    auto* violation = bad_request.add_field_violations();
    violation->set_field(DetailText(error.field));
    violation->set_description(DetailText(error.field_text()));
    violation->set_reason(error.reason);
    details.add_details()->PackFrom(bad_request);
  }
  if (!error.missing_model.empty()) {
    google::rpc::ResourceInfo resource;
    resource.set_resource_type("model");
    resource.set_resource_name(DetailText(error.missing_model));
    details.add_details()->PackFrom(resource);
  }
  if (!error.reason.empty()) {
    google::rpc::ErrorInfo info;
    info.set_reason(error.reason);
    info.set_domain("tramontane");
    for (const auto& [key, value] : error.info) (*info.mutable_metadata())[key] = DetailText(value);
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

grpc::Status ToGrpcStatus(const RpcError& error, grpc::CallbackServerContext& context) {
  if (error.retry_after_ms > 0) {
    context.AddTrailingMetadata("grpc-retry-pushback-ms", std::to_string(error.retry_after_ms));
  }
  return ToGrpcStatus(error);
}

}  // namespace tramontane
