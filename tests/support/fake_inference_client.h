// An InferenceClient without a model: a test says what its calls say, by hand or by a script, and sees what
// the gateway did to them. Any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/call/inference_client.h"

namespace tramontane {

v1::GenerateResponse StartedEvent(int64_t prompt_tokens);
// `completion_tokens`: of the choice so far. One token id for each token it gained is made up.
v1::GenerateResponse DeltaEvent(int32_t choice, const std::string& text, int64_t completion_tokens);
v1::GenerateResponse FinishedEvent(int32_t choice, v1::FinishReason reason, int64_t prompt_tokens,
                                   int64_t completion_tokens);

class FakeInferenceCall final : public InferenceCall {
 public:
  FakeInferenceCall(Caller caller, v1::GenerateRequest request, InferenceCallOptions options,
                    std::function<void()> on_ready);

  // ---- the gateway's side ----
  InferenceEvents Take() override;
  void Cancel() override;

  // ---- the test's side ----
  const v1::GenerateRequest& request() const { return request_; }
  const Caller& caller() const { return caller_; }
  const InferenceCallOptions& options() const { return options_; }
  // Deltas of one choice that nobody took are joined, as the seam promises.
  void Put(v1::GenerateResponse event);
  void End(RpcError outcome = {});
  // Calls the gateway once more, as the seam allows, with nothing new to take.
  void SayReady() { on_ready_(); }
  bool cancelled() const;
  bool open() const;  // neither ended nor cancelled
  int64_t pending_events() const;
  // False: not within the test's patience.
  bool WaitUntilCancelled();

 private:
  const Caller caller_;
  const v1::GenerateRequest request_;
  const InferenceCallOptions options_;
  const std::function<void()> on_ready_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  InferenceEvents pending_;
  bool ended_ = false;
  bool cancelled_ = false;
};

class FakeInferenceClient final : public InferenceClient {
 public:
  // ---- what the test sets before it starts a gateway ----

  // Runs inside Generate, before it returns: may let the call say all it has to say. Null: the test speaks
  // for it.
  std::function<void(FakeInferenceCall&)> on_generate;
  // Not ok: what Generate refuses with.
  std::function<RpcError(const v1::GenerateRequest&)> refuse;
  // Not ok: what every unary call fails with.
  RpcError unary_error;
  v1::GetModelResponse model;  // "fake", context 4096, 300 tokens
  v1::GetLoadResponse load;
  bool is_ready = true;
  RpcError health_fault;  // ok(): healthy

  FakeInferenceClient();

  // ---- what the test sees ----

  // The n-th call that was ever made, from 0; null: not within the test's patience.
  std::shared_ptr<FakeInferenceCall> WaitForCall(size_t n);
  size_t calls_made() const;
  int64_t open_calls() const;
  std::vector<std::shared_ptr<FakeInferenceCall>> calls() const;
  // Forgets calls that are not open: for tests that make very many.
  void ForgetEndedCalls();

  // ---- InferenceClient ----

  std::shared_ptr<InferenceCall> Generate(const Caller& caller, v1::GenerateRequest request,
                                          const InferenceCallOptions& options, std::function<void()> on_ready,
                                          RpcError* refusal) override;
  void NoteUnsent(int64_t change) override { unsent_ += change; }
  int64_t unsent() const { return unsent_; }
  bool ready() const override { return is_ready; }
  RpcError health() const override { return health_fault; }

 private:
  // Tokenize: a token for each byte; a beginning-of-sequence token, 1, before them where it is asked for.
  // Byte b is token b + 3. RenderChat: contents of the messages, each on a line. No sessions are kept:
  // UNIMPLEMENTED.
  void AskUnary(const Caller& caller, std::shared_ptr<const google::protobuf::Message> request,
                std::unique_ptr<google::protobuf::Message> response,
                Done<google::protobuf::Message> done) override;

  std::atomic<int64_t> unsent_{0};
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<std::shared_ptr<FakeInferenceCall>> calls_;
  size_t forgotten_ = 0;
};

// Lets a call say "t0 t1 ... " in `tokens` deltas, and end.
void SayTokens(FakeInferenceCall& call, int64_t tokens);
// What such a call says in all.
std::string TokensText(int64_t tokens);

// Steps like an engine on a thread of its own: one token for every open call each `step_us`, until a call has
// its max_tokens; those that are done or cancelled are forgotten.
class FakeStepLoop {
 public:
  FakeStepLoop(FakeInferenceClient& client, int64_t step_us);
  ~FakeStepLoop();  // stops after the step

  int64_t events() const { return events_; }
  int64_t cpu_ns() const { return cpu_ns_; }  // of its thread; after it was stopped
  void Stop();

 private:
  void Run();

  FakeInferenceClient& client_;
  const int64_t step_us_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> events_{0};
  std::atomic<int64_t> cpu_ns_{0};
  std::thread thread_;
};

}  // namespace tramontane
