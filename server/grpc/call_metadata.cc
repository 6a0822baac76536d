#include "server/grpc/call_metadata.h"

#include <charconv>
#include <chrono>
#include <optional>

#include "server/access/key_use.h"
#include "server/base/peer_address.h"
#include "server/grpc/message_parts.h"

namespace tramontane {
namespace {

std::optional<std::string> ClientMetadata(const grpc::CallbackServerContext& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return std::nullopt;
  return std::string(found->second.data(), found->second.size());
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
  if (needs_key) return doorkeeper.Identify(credentials, Caller::Door::kGrpc, caller);
  *caller = doorkeeper.ByAddress(credentials, Caller::Door::kGrpc);
  return {};
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
