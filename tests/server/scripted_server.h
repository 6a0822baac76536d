// A real server, engine and gRPC included, over a model that says a known text at the pace the test sets; and
// the client's side of it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_thread.h"
#include "engine/threads/clock.h"
#include "models/chat/chat_format.h"
#include "models/tokenizer/tokenizer.h"
#include "server/server.h"
#include "tests/server/scripted_model.h"
#include "tests/server/unary_client.h"
#include "tramontane/v1/inference.grpc.pb.h"

namespace tramontane {

struct ScriptedServerOptions {
  EngineLimits limits;  // context and pool_pages 0: 32768 and enough
  ServerOptions server;
  bool serve = true;
  int64_t max_answer_bytes = kDefaultMaxAnswerBytes;
  std::string says = {};                                            // "": a text of its own
  std::function<ChatFormatPtr(const Tokenizer&)> chat_format = {};  // null: the tokenizer's version's
};

class ScriptedServer {
 public:
  explicit ScriptedServer(ScriptedServerOptions options = {});
  ~ScriptedServer();

  // What the model says from position `begin` on, after a prompt that ends in text: `count` ids, and their
  // text.
  std::vector<int32_t> IdsSaid(int64_t begin, int64_t count) const;
  std::string TextSaid(int64_t begin, int64_t count) const;

  ScriptedModel& model() { return *model_; }
  Server& server() { return *server_; }
  ServedModel served() const;
  Engine& engine() { return *engine_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::string& address() const { return server_->grpc_address(); }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  v1::Inference::Stub& stub() { return *stub_; }
  UnaryClient& client() { return *client_; }

  void Serve();  // where the options said not to at once
  // Polls GetLoad until `holds` of it; fails the test after a minute.
  template <typename Condition>
  void WaitForLoad(const Condition& holds);

 private:
  void CheckWaited(int64_t polls) const;

  SteadyClock clock_;
  const int64_t max_answer_bytes_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  ChatFormatPtr chat_format_;
  std::unique_ptr<ScriptedModel> model_;
  std::unique_ptr<Engine> engine_;
  std::optional<EngineThread> thread_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::unique_ptr<UnaryClient> client_;
};

// No log line for each request.
void QuietLogs();

// One Generate call, read when the test says so.
class Stream {
 public:
  Stream(v1::Inference::Stub& stub, const v1::GenerateRequest& request)
      : reader_(stub.Generate(&context_, request)) {}
  Stream(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
         const std::vector<std::pair<std::string, std::string>>& metadata);
  Stream(v1::Inference::Stub& stub, const v1::GenerateRequest& request, std::chrono::milliseconds timeout);

  // The next event; nothing at the end.
  std::optional<v1::GenerateResponse> Next();
  // Reads to the end; true when the status is OK.
  grpc::Status ReadAll();
  void Cancel() { context_.TryCancel(); }
  void WaitForInitialMetadata() { reader_->WaitForInitialMetadata(); }
  // "" where the server sent no such key.
  std::string InitialMetadata(const std::string& key) const;
  std::string TrailingMetadata(const std::string& key) const;

  // What was read so far.
  const std::vector<v1::GenerateResponse>& events() const { return events_; }
  std::string text(int32_t choice = 0) const;
  std::vector<int32_t> token_ids(int32_t choice = 0) const;
  const v1::Finished& finished(int32_t choice = 0) const;
  int64_t deltas() const;

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
  std::vector<v1::GenerateResponse> events_;
};

v1::GenerateRequest RequestOfIds(std::vector<int32_t> ids, int64_t max_tokens);

inline constexpr char kTokenize[] = "/tramontane.v1.Inference/Tokenize";  // the name of a method

// Sends bytes to a method by name, as no generated client would; `response` gets the bytes that come back.
grpc::Status CallWithBytes(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                           const std::string& bytes, std::string* response = nullptr);

// SERVING is 1, NOT_SERVING 2; -1 where the call failed.
int HealthOf(const std::shared_ptr<grpc::Channel>& channel, const std::string& service);

template <typename Condition>
void ScriptedServer::WaitForLoad(const Condition& holds) {
  for (int64_t polls = 0;; ++polls) {
    const StatusOr<v1::GetLoadResponse> load = client_->GetLoad();
    if (load.ok() && holds(*load)) return;
    CheckWaited(polls);
  }
}

}  // namespace tramontane
