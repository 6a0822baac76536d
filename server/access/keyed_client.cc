#include "server/access/keyed_client.h"

#include <utility>
#include <vector>

#include "server/access/key_charge.h"

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

// True: the request asked for a better priority than its key's, and has that now.
bool HoldPriority(const ApiKey* key, Message* request) {
  const auto* field = request->GetDescriptor()->FindFieldByName("priority");
  if (key == nullptr || field == nullptr) return false;
  const auto* reflection = request->GetReflection();
  if (reflection->GetInt32(*request, field) >= key->priority) return false;
  const bool is_asked = reflection->HasField(*request, field);
  reflection->SetInt32(request, field, key->priority);
  return is_asked;
}

class KeyedCall final : public InferenceCall {
 public:
  KeyedCall(std::shared_ptr<InferenceCall> inner, std::unique_ptr<KeyCharge> charge, bool holds_priority)
      : inner_(std::move(inner)), charge_(std::move(charge)), holds_priority_(holds_priority) {}

  InferenceEvents Take() override;
  void NoteDelivered() override { inner_->NoteDelivered(); }
  void Cancel() override { inner_->Cancel(); }

 private:
  const std::shared_ptr<InferenceCall> inner_;
  const std::unique_ptr<KeyCharge> charge_;
  bool holds_priority_;  // and has not told it
};

InferenceEvents KeyedCall::Take() {
  InferenceEvents taken = inner_->Take();
  for (v1::GenerateResponse& event : taken.events) {
    if (event.has_started()) {
      charge_->NotePrompt(event.started().prompt_tokens());
      if (std::exchange(holds_priority_, false)) event.mutable_started()->add_ignored("priority");
    } else if (event.has_delta()) {
      charge_->NoteCompletion(event.delta().choice(), event.delta().completion_tokens());
    } else {
      const v1::Finished& finished = event.finished();
      charge_->NoteCompletion(finished.choice(), finished.usage().completion_tokens());
    }
  }
  if (taken.done) charge_->End();
  return taken;
}

// `done` of a ScoreCandidates, whose tokens its key pays for.
InferenceClient::Done<Message> Charged(InferenceClient::Done<Message> done,
                                       const std::shared_ptr<KeyCharge>& charge, bool holds_priority) {
  return [done = std::move(done), charge, holds_priority](const RpcError& error, const Message& answer) {
    v1::ScoreCandidatesResponse scores = static_cast<const v1::ScoreCandidatesResponse&>(answer);
    if (error.ok()) charge->NotePrompt(scores.usage().prompt_tokens() + scores.candidate_tokens());
    if (holds_priority) scores.add_ignored("priority");
    charge->End();
    done(error, scores);
  };
}

}  // namespace

std::shared_ptr<InferenceCall> KeyedClient::Generate(const Caller& caller, v1::GenerateRequest request,
                                                     const InferenceCallOptions& options,
                                                     std::function<void()> on_ready, RpcError* refusal) {
  auto charge = std::make_unique<KeyCharge>(caller.key, options.continues);
  *refusal = CheckMayUse(caller.key.get(), request.model());
  if (refusal->ok()) *refusal = charge->Begin();
  if (!refusal->ok()) return nullptr;
  AddKeySalt(caller, &request);
  const bool holds_priority = HoldPriority(caller.key.get(), &request);
  auto call = inner_.Generate(caller, std::move(request), options, std::move(on_ready), refusal);
  if (call == nullptr) return nullptr;
  return std::make_shared<KeyedCall>(std::move(call), std::move(charge), holds_priority);
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
  const bool is_charged =
      key != nullptr && request->GetDescriptor() == v1::ScoreCandidatesRequest::descriptor();
  bool holds_priority = false;
  if (is_charged || !caller.key_salt.empty()) {
    std::shared_ptr<Message> held(request->New());
    held->CopyFrom(*request);
    AddKeySalt(caller, held.get());
    holds_priority = HoldPriority(key, held.get());
    request = std::move(held);
  }
  if (is_charged) {
    const auto charge = std::make_shared<KeyCharge>(caller.key, /*continues=*/false);
    if (const RpcError error = charge->Begin(); !error.ok()) return done(error, *response);
    done = Charged(std::move(done), charge, holds_priority);
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
