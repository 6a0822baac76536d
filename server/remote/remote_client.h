// RemoteClient: the InferenceClient of the separate gateway: gRPC to one or several servers of one model.
//
// A call goes to the server that is up and has the least to do: what we have open there now, and what others
// had open when it was last asked (GetLoad). Up is what gRPC's health service says; a draining server is not.
// A call that fails with UNAVAILABLE or RESOURCE_EXHAUSTED before its first event goes to another server,
// each once.
//
// Any thread. Callbacks come on gRPC's threads.
// Always: of what a reader has not taken, a call holds one Delta per choice and about kMaxHeldBytes; beyond
// that it stops reading, and the server joins what is said meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/core/inference_client.h"

namespace tramontane {

struct RemoteClientOptions {
  std::vector<std::string> backends;  // HOST:PORT of gRPC; at least one
  int64_t poll_interval_ms = 1000;    // between two questions for a server's load
};

// How one server looks from here.
struct BackendState {
  std::string address;
  bool up = false;
  int64_t open_calls = 0;    // ours
  int64_t others_calls = 0;  // of other clients, when last asked
  int64_t started_calls = 0;
  int64_t lost_calls = 0;  // ended by UNAVAILABLE: the server went away or refused
};

class RemoteClient final : public InferenceClient {
 public:
  explicit RemoteClient(const RemoteClientOptions& options);
  ~RemoteClient() override;  // cancels what is open and waits for its end

  std::shared_ptr<InferenceCall> Generate(v1::GenerateRequest request, const InferenceCallOptions& options,
                                          std::function<void()> on_ready, RpcError* refusal) override;
  void Tokenize(v1::TokenizeRequest request, Done<v1::TokenizeResponse> done) override;
  void Detokenize(v1::DetokenizeRequest request, Done<v1::DetokenizeResponse> done) override;
  void RenderChat(v1::RenderChatRequest request, Done<v1::RenderChatResponse> done) override;
  void GetModel(v1::GetModelRequest request, Done<v1::GetModelResponse> done) override;
  void GetLoad(Done<v1::GetLoadResponse> done) override;  // summed, as last asked
  // Of one server; of several each lists its own.
  void ListSessions(Done<v1::ListSessionsResponse> done) override;
  void DeleteSession(v1::DeleteSessionRequest request, Done<v1::DeleteSessionResponse> done) override;
  void SaveSession(v1::SaveSessionRequest request, Done<v1::SaveSessionResponse> done) override;
  void RestoreSession(v1::RestoreSessionRequest request, Done<v1::RestoreSessionResponse> done) override;
  bool ready() const override;       // one server is up
  RpcError health() const override;  // UNAVAILABLE names them all

  // True once one is up; false when none was within the time.
  bool WaitUntilReady(int64_t timeout_ms) const;
  std::vector<BackendState> backends() const;  // in the order of the options

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tramontane
