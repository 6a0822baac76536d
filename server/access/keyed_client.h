// KeyedClient: the rights and bounds of callers' keys, in front of an InferenceClient that does not know
// them: the separate gateway's. (In a server InferenceCore holds them.) Any thread, as InferenceClient.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/call/inference_client.h"

namespace tramontane {

class KeyedClient final : public InferenceClient {
 public:
  explicit KeyedClient(InferenceClient& inner) : inner_(inner) {}  // borrowed; outlives it and its calls

  // PERMISSION_DENIED: the key is not for the model that is asked for; where it is for some alone, one of
  // them has to be named. RESOURCE_EXHAUSTED: as KeyUse. A better priority than the key's own is that.
  std::shared_ptr<InferenceCall> Generate(const Caller& caller, v1::GenerateRequest request,
                                          const InferenceCallOptions& options, std::function<void()> on_ready,
                                          RpcError* refusal) override;
  // Of GetModel only the names that the key is for.
  void AskUnary(const Caller& caller, std::shared_ptr<const google::protobuf::Message> request,
                std::unique_ptr<google::protobuf::Message> response,
                Done<google::protobuf::Message> done) override;
  void NoteUnsent(int64_t change) override { inner_.NoteUnsent(change); }
  bool ready() const override { return inner_.ready(); }
  RpcError health() const override { return inner_.health(); }

 private:
  InferenceClient& inner_;
};

}  // namespace tramontane
