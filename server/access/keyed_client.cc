#include "server/access/keyed_client.h"

#include <utility>
#include <vector>

namespace tramontane {
namespace {

using google::protobuf::Message;

RpcError CheckMayUse(const ApiKey* key, const std::string& model) {
  if (key == nullptr || key->models.empty() || key->MayUse(model)) return {};
  RpcError error =
      ToRpcError(Status(StatusCode::kPermissionDenied, "the key \"" + key->name + "\" is not for this model")
                     .WithField("model"));
  error.reason = "MODEL_NOT_ALLOWED";
  return error;
}

// The "model" of a request; "" where it has no such field.
std::string ModelOf(const Message& request) {
  const auto* field = request.GetDescriptor()->FindFieldByName("model");
  return field == nullptr ? "" : request.GetReflection()->GetString(request, field);
}

// Servers behind know nothing of the key: its salt goes with the request's own.
void AddKeySalt(const Caller& caller, Message* request) {
  const auto* field = request->GetDescriptor()->FindFieldByName("cache_salt");
  if (caller.key_salt.empty() || field == nullptr) return;
  const auto* reflection = request->GetReflection();
  reflection->SetString(request, field, PageSalt(caller, reflection->GetString(*request, field)));
}

class KeyedCall final : public InferenceCall {
 public:
  KeyedCall(std::shared_ptr<InferenceCall> inner, std::shared_ptr<KeyConcurrency> requests,
            std::shared_ptr<const ApiKey> key)
      : inner_(std::move(inner)), requests_(std::move(requests)), key_(std::move(key)) {}
  ~KeyedCall() override { requests_->End(key_.get()); }

  InferenceEvents Take() override { return inner_->Take(); }
  void NoteDelivered() override { inner_->NoteDelivered(); }
  void Cancel() override { inner_->Cancel(); }

 private:
  const std::shared_ptr<InferenceCall> inner_;
  const std::shared_ptr<KeyConcurrency> requests_;
  const std::shared_ptr<const ApiKey> key_;
};

}  // namespace

std::shared_ptr<InferenceCall> KeyedClient::Generate(const Caller& caller, v1::GenerateRequest request,
                                                     const InferenceCallOptions& options,
                                                     std::function<void()> on_ready, RpcError* refusal) {
  // A later call of a request that was taken is part of it.
  const std::shared_ptr<const ApiKey> counted = options.continues ? nullptr : caller.key;
  *refusal = CheckMayUse(caller.key.get(), request.model());
  if (refusal->ok()) *refusal = requests_->Begin(counted.get());
  if (!refusal->ok()) return nullptr;
  AddKeySalt(caller, &request);
  auto call = inner_.Generate(caller, std::move(request), options, std::move(on_ready), refusal);
  if (call == nullptr) {
    requests_->End(counted.get());
    return nullptr;
  }
  return std::make_shared<KeyedCall>(std::move(call), requests_, counted);
}

void KeyedClient::AskUnary(const Caller& caller, std::shared_ptr<const Message> request,
                           std::unique_ptr<Message> response, Done<Message> done) {
  const ApiKey* key = caller.key.get();
  const bool is_list =
      request->GetDescriptor() == v1::GetModelRequest::descriptor() && ModelOf(*request).empty();
  const bool has_model = request->GetDescriptor()->FindFieldByName("model") != nullptr;
  if (has_model && !is_list) {
    if (const RpcError error = CheckMayUse(key, ModelOf(*request)); !error.ok())
      return done(error, *response);
  }
  if (!caller.key_salt.empty()) {
    std::shared_ptr<Message> salted(request->New());
    salted->CopyFrom(*request);
    AddKeySalt(caller, salted.get());
    request = std::move(salted);
  }
  if (!is_list || key == nullptr || key->models.empty()) {
    return inner_.AskUnary(caller, std::move(request), std::move(response), std::move(done));
  }
  inner_.AskUnary(caller, std::move(request), std::move(response),
                  [done = std::move(done), key = caller.key](const RpcError& error, const Message& all) {
                    v1::GetModelResponse allowed = static_cast<const v1::GetModelResponse&>(all);
                    allowed.clear_names();
                    for (const std::string& name : static_cast<const v1::GetModelResponse&>(all).names()) {
                      if (key->MayUse(name)) allowed.add_names(name);
                    }
                    done(error, allowed);
                  });
}

}  // namespace tramontane
