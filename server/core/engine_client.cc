#include "server/core/engine_client.h"

#include <mutex>
#include <optional>
#include <utility>

#include "server/core/score_question.h"
#include "server/core/served_call.h"
#include "server/core/unary_calls.h"

namespace tramontane {
namespace {

// One Generate of the gateway.
//
//   waiting for a worker -> admitted, or refused -> ended (the outcome was known to Take)
class EngineCall final : public InferenceCall, public std::enable_shared_from_this<EngineCall> {
 public:
  EngineCall(InferenceCore& core, const Caller& caller, const InferenceCallOptions& options,
             std::function<void()> on_ready)
      : on_ready_(std::move(on_ready)), served_(core, caller, options) {}

  InferenceEvents Take() override;
  void NoteDelivered() override {
    std::lock_guard lock(mutex_);
    served_.NoteDelivered();
  }
  void Cancel() override { served_.Cancel(); }

  RpcError Open() { return served_.Open(); }
  void Admit(const v1::GenerateRequest& request);  // worker
  void Refuse(const RpcError& error);              // of what was to be admitted
  void End(const RpcError& refusal) { served_.End(refusal); }

 private:
  const std::function<void()> on_ready_;
  ServedCall served_;

  std::mutex mutex_;  // guards the next two, and one Take or NoteDelivered against another
  bool admitted_ = false;
  std::optional<RpcError> refusal_;  // until it is taken
};

// The engine may have called `on_ready` before there was anything to take here, so the reader is told again.
void EngineCall::Admit(const v1::GenerateRequest& request) {
  RpcError error = served_.CheckIsWanted();
  if (error.ok()) {
    error = served_.Admit(request, [weak = weak_from_this()] {
      if (const std::shared_ptr<EngineCall> call = weak.lock()) call->on_ready_();
    });
  }
  if (!error.ok()) return Refuse(error);
  {
    std::lock_guard lock(mutex_);
    admitted_ = true;
  }
  on_ready_();
}

void EngineCall::Refuse(const RpcError& error) {
  {
    std::lock_guard lock(mutex_);
    served_.End(error);
    refusal_ = error;
  }
  on_ready_();
}

InferenceEvents EngineCall::Take() {
  std::lock_guard lock(mutex_);
  if (refusal_) return {.events = {}, .done = true, .outcome = *std::exchange(refusal_, std::nullopt)};
  if (!admitted_) return {};
  InferenceEvents taken = served_.Take();
  if (taken.done) served_.End(taken.outcome);
  return taken;
}

}  // namespace

std::shared_ptr<InferenceCall> EngineClient::Generate(const Caller& caller, v1::GenerateRequest request,
                                                      const InferenceCallOptions& options,
                                                      std::function<void()> on_ready, RpcError* refusal) {
  auto call = std::make_shared<EngineCall>(core_, caller, options, std::move(on_ready));
  *refusal = call->Open();
  if (refusal->ok()) {
    const auto shared = std::make_shared<const v1::GenerateRequest>(std::move(request));
    const auto admit = [call, shared] { call->Admit(*shared); };
    const auto give_way = [&core = core_, call] { call->Refuse(core.WorkersBusyError()); };
    if (core_.SubmitCall(*shared, caller, admit, give_way)) return call;
    *refusal = core_.WorkersBusyError();
  }
  call->End(*refusal);
  return nullptr;
}

void EngineClient::AskUnary(const Caller& caller, std::shared_ptr<const google::protobuf::Message> request,
                            std::unique_ptr<google::protobuf::Message> response,
                            Done<google::protobuf::Message> done) {
  if (const auto scored = std::dynamic_pointer_cast<const v1::ScoreCandidatesRequest>(request)) {
    return AskScores(core_, caller, scored, std::move(done));
  }
  const UnaryCall& call = FindUnaryCall(*request->GetDescriptor());
  const std::shared_ptr<google::protobuf::Message> answer = std::move(response);
  const auto work = [&core = core_, &call, caller, request, answer, done](const Serving& serving) {
    const RpcError error = call.answer({core, serving, caller}, *request, answer.get());
    done(error, *answer);
  };
  core_.RunUnary(call.thread, static_cast<int64_t>(request->ByteSizeLong()), caller, work,
                 [answer, done](const RpcError& refusal) { done(refusal, *answer); });
}

}  // namespace tramontane
