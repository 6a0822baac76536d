// RemoteClient: the InferenceClient of the separate gateway: gRPC to one or several servers of one model.
//
// A call goes to the server that is up and has the least to do: what we have open there now, and what others
// had open when it was last asked (GetLoad). Up is what gRPC's health service says; a draining server is not.
// One that is refused before its first event goes to another server where that helps (ServerChoice).
//
// Any thread. Callbacks come on gRPC's threads.
// Always: what a call tells is what inference.proto allows, whatever its server says (EventCheck,
// AnswerFault), and names no server.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/call/inference_client.h"
#include "server/remote/client_tls.h"

namespace tramontane {

// Of one message of a server: what gRPC's clients take by default, and so the most that servers send of what
// can come in several; and the answer of a call that has one, as long as what it is asked.
inline constexpr int kMaxShortMessageBytes = 4 << 20;
inline constexpr int kMaxLongMessageBytes = 64 << 20;
// Of what is on its way from one server. gRPC looks at a message's length when it has all of it: this is what
// ends a message that is far longer than it may be.
inline constexpr size_t kServerMemoryBytes = size_t{128} << 20;
// Of a call that nobody takes from; then it is not read on.
inline constexpr size_t kHeldCallBytes = 256 << 10;

struct RemoteClientOptions {
  std::vector<std::string> backends;              // HOST:PORT of gRPC; at least one
  std::string api_key = {};                       // for all of them; "": none
  ClientTls tls = {};                             // with all of them
  int64_t poll_interval_ms = 1000;                // between two questions for a server's load
  int64_t max_answer_bytes = int64_t{256} << 20;  // of a Started with all its parts; 0: any
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

class RemoteServers;

class RemoteClient final : public InferenceClient {
 public:
  explicit RemoteClient(const RemoteClientOptions& options);
  ~RemoteClient() override;  // cancels what is open and waits for its end

  std::shared_ptr<InferenceCall> Generate(const Caller& caller, v1::GenerateRequest request,
                                          const InferenceCallOptions& options, std::function<void()> on_ready,
                                          RpcError* refusal) override;
  void NoteUnsent(int64_t change) override { unsent_ += change; }
  bool ready() const override;  // one server is up
  RpcError health() const override;

  // True once one is up; false when none was within the time.
  bool WaitUntilReady(int64_t timeout_ms) const;
  std::vector<BackendState> backends() const;  // in the order of the options
  int64_t unsent() const { return unsent_; }   // prompts that wait here for room at a server

 private:
  // GetLoad is summed, as last asked. Sessions are asked for at the server that keeps them; their list is
  // that of one server: of several each lists its own.
  void AskUnary(const Caller& caller, std::shared_ptr<const google::protobuf::Message> request,
                std::unique_ptr<google::protobuf::Message> response,
                Done<google::protobuf::Message> done) override;

  std::unique_ptr<RemoteServers> servers_;
  std::atomic<int64_t> unsent_{0};
};

}  // namespace tramontane
