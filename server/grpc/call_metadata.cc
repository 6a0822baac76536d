#include "server/grpc/call_metadata.h"

#include <charconv>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "server/access/key_use.h"
#include "server/base/peer_address.h"
#include "server/base/request_id.h"
#include "server/grpc/message_parts.h"

namespace tramontane {
namespace {

std::optional<std::string> ClientMetadata(const grpc::CallbackServerContext& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return std::nullopt;
  return std::string(found->second.data(), found->second.size());
}

TraceContext TraceOf(const grpc::CallbackServerContext& context) {
  const auto values = [&context](const char* key) {
    std::vector<std::string_view> all;
    const auto [begin, end] = context.client_metadata().equal_range(key);
    for (auto at = begin; at != end; ++at) all.emplace_back(at->second.data(), at->second.size());
    return all;
  };
  const std::vector<std::string_view> parents = values(kTraceParentKey);
  return parents.empty() ? TraceContext() : ReadTraceContext(parents, values(kTraceStateKey));
}

}  // namespace

RpcError IdentifyCaller(const grpc::CallbackServerContext& context, const Doorkeeper& doorkeeper,
                        bool needs_key, Caller* caller) {
  const std::string address = AddressOfGrpcPeer(context.peer());
  const std::string forwarded_for = ClientMetadata(context, "x-forwarded-for").value_or("");
  const std::string authorization = ClientMetadata(context, "authorization").value_or("");
  const std::string api_key = ClientMetadata(context, "x-api-key").value_or("");
  const std::string tramontane_caller = ClientMetadata(context, kTramontaneCallerKey).value_or("");
  const std::string caller_weight = ClientMetadata(context, kCallerWeightKey).value_or("");
  const Credentials credentials = {.address = address,
                                   .forwarded_for = forwarded_for,
                                   .authorization = authorization,
                                   .api_key = api_key,
                                   .tramontane_caller = tramontane_caller,
                                   .caller_weight = caller_weight};
  RpcError error;
  if (needs_key) {
    error = doorkeeper.Identify(credentials, Caller::Door::kGrpc, caller);
  } else {
    *caller = doorkeeper.ByAddress(credentials, Caller::Door::kGrpc);
  }
  caller->trace = TraceOf(context);
  return error;
}

std::string RequestIdOf(const grpc::CallbackServerContext& context) {
  std::optional<std::string> id = ClientMetadata(context, kRequestIdKey);
  return id && RequestIdFault(*id).empty() ? *std::move(id) : DrawRequestId();
}

InferenceCallOptions OptionsOf(const grpc::CallbackServerContext& context) {
  InferenceCallOptions options = {.request_id = ClientMetadata(context, kRequestIdKey),
                                  .correlation_id = ClientMetadata(context, kCorrelationIdKey)};
  if (context.deadline() != std::chrono::system_clock::time_point::max()) {
    options.deadline =
        std::chrono::steady_clock::now() + (context.deadline() - std::chrono::system_clock::now());
  }
  return options;
}

size_t MostAnswerBytes(const grpc::CallbackServerContext& context) {
  size_t bytes = kDefaultMessageBytes;
  if (const auto said = ClientMetadata(context, kMaxMessageBytesKey)) {
    std::from_chars(said->data(), said->data() + said->size(), bytes);
  }
  return bytes;
}

void AddRateLimits(const Caller& caller, grpc::CallbackServerContext& context) {
  for (const auto& [key, value] : RateLimitHeaders(caller.key.get())) context.AddInitialMetadata(key, value);
}

std::string MetadataText(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

}  // namespace tramontane
