#include "server/remote/remote_client.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "server/remote/remote_generation.h"
#include "server/remote/remote_question.h"
#include "server/remote/remote_server.h"

namespace tramontane {
namespace {

using google::protobuf::Message;

// Adds every number of `load` to that of `sum`.
void AddLoad(const v1::GetLoadResponse& load, v1::GetLoadResponse* sum) {
  const google::protobuf::Reflection& reflection = *load.GetReflection();
  for (int i = 0; i < load.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = load.GetDescriptor()->field(i);
    if (field->is_repeated() || field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_INT64)
      continue;
    reflection.SetInt64(sum, field, reflection.GetInt64(*sum, field) + reflection.GetInt64(load, field));
  }
}

}  // namespace

RemoteClient::RemoteClient(const RemoteClientOptions& options)
    : servers_(std::make_unique<RemoteServers>(options)) {}

RemoteClient::~RemoteClient() = default;

std::shared_ptr<InferenceCall> RemoteClient::Generate(const Caller& caller, v1::GenerateRequest request,
                                                      const InferenceCallOptions& options,
                                                      std::function<void()> on_ready, RpcError* refusal) {
  return GenerateRemotely(*servers_, caller, std::move(request), options, std::move(on_ready), refusal);
}

void RemoteClient::AskUnary(const Caller& caller, std::shared_ptr<const Message> request,
                            std::unique_ptr<Message> response, Done<Message> done) {
  const google::protobuf::Descriptor* asked = request->GetDescriptor();
  const size_t servers = servers_->all().size();
  if (asked == v1::GetLoadRequest::descriptor()) {
    auto* sum = static_cast<v1::GetLoadResponse*>(response.get());
    for (const auto& backend : servers_->all()) {
      if (backend->up()) AddLoad(backend->last_load(), sum);
    }
    return done({}, *response);
  }
  if (asked == v1::ListSessionsRequest::descriptor() && servers > 1) {
    return done(ToRpcError(Unimplemented("behind this gateway are " + std::to_string(servers) +
                                         " servers, each of which lists its own sessions")),
                *response);
  }
  AskRemotely(*servers_, caller, std::move(request), std::move(response), std::move(done));
}

bool RemoteClient::ready() const {
  const auto& all = servers_->all();
  return std::any_of(all.begin(), all.end(), [](const auto& backend) { return backend->up(); });
}

RpcError RemoteClient::health() const { return ready() ? RpcError() : NoBackendError(); }

bool RemoteClient::WaitUntilReady(int64_t timeout_ms) const {
  constexpr std::chrono::milliseconds kLook(10);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!ready()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kLook);
  }
  for (const auto& backend : servers_->all()) backend->LogChange();
  return true;
}

std::vector<BackendState> RemoteClient::backends() const {
  std::vector<BackendState> states;
  for (const auto& backend : servers_->all()) states.push_back(backend->state());
  return states;
}

}  // namespace tramontane
