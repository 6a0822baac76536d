#include "server/grpc/served_status.h"

#include <string>

#include "server/grpc/call_metadata.h"
#include "server/grpc/grpc_status.h"

namespace tramontane {

void AddServedMetadata(const ServedCall& served, grpc::CallbackServerContext& context) {
  const std::string& id = served.request_id();
  const std::string& correlation_id = served.correlation_id();
  if (!id.empty()) context.AddInitialMetadata(kRequestIdKey, id);
  if (!correlation_id.empty()) context.AddInitialMetadata(kCorrelationIdKey, correlation_id);
  AddRateLimits(served.caller(), context);
}

grpc::Status EndServed(const RpcError& error, ServedCall& served, grpc::CallbackServerContext& context) {
  served.End(error);
  const ServedCall::Summary& summary = served.summary();
  if (summary.finished_choices > 0) {
    const Timings& times = summary.timings;
    context.AddTrailingMetadata("x-prompt-tokens", std::to_string(summary.prompt_tokens));
    context.AddTrailingMetadata("x-cached-tokens", std::to_string(summary.cached_tokens));
    context.AddTrailingMetadata("x-completion-tokens", std::to_string(summary.completion_tokens));
    context.AddTrailingMetadata("x-queue-ms", MillisecondsText(times.received_ns, times.admitted_ns));
    context.AddTrailingMetadata("x-prefill-ms", MillisecondsText(times.admitted_ns, times.first_token_ns));
    context.AddTrailingMetadata("x-decode-ms", MillisecondsText(times.first_token_ns, times.finished_ns));
  }
  return ToGrpcStatus(error, context);
}

}  // namespace tramontane
