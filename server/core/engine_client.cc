#include "server/core/engine_client.h"

#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

#include "server/core/served_call.h"

namespace tramontane {
namespace {

Caller CallerOf(const InferenceCallOptions& options) {
  Caller caller;
  if (!options.correlation_id.empty()) caller.correlation_id = options.correlation_id;
  if (options.deadline) {
    const auto left = *options.deadline - std::chrono::steady_clock::now();
    caller.timeout_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
  }
  caller.continues = options.continues;
  caller.receive_ns = options.receive_ns;
  caller.parse_ns = options.parse_ns;
  return caller;
}

// One Generate of the gateway.
//
//   waiting for a worker -> admitted, or refused -> ended (the outcome was known to Take)
class EngineCall final : public InferenceCall, public std::enable_shared_from_this<EngineCall> {
 public:
  EngineCall(InferenceCore& core, const InferenceCallOptions& options, std::function<void()> on_ready)
      : on_ready_(std::move(on_ready)), served_(core, CallerOf(options)) {}

  InferenceEvents Take() override;
  void NoteDelivered() override {
    std::lock_guard lock(mutex_);
    served_.NoteDelivered();
  }
  void Cancel() override { served_.Cancel(); }

  RpcError Open() { return served_.Open(); }
  void Admit(const v1::GenerateRequest& request);  // worker
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
  {
    std::lock_guard lock(mutex_);
    admitted_ = error.ok();
    if (!admitted_) {
      served_.End(error);
      refusal_ = error;
    }
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

std::shared_ptr<InferenceCall> EngineClient::Generate(v1::GenerateRequest request,
                                                      const InferenceCallOptions& options,
                                                      std::function<void()> on_ready, RpcError* refusal) {
  auto call = std::make_shared<EngineCall>(core_, options, std::move(on_ready));
  *refusal = call->Open();
  if (refusal->ok()) {
    const auto shared = std::make_shared<const v1::GenerateRequest>(std::move(request));
    if (core_.SubmitCall(*shared, options.client, [call, shared] { call->Admit(*shared); })) return call;
    *refusal = core_.WorkersBusyError();
  }
  call->End(*refusal);
  return nullptr;
}

void EngineClient::Tokenize(v1::TokenizeRequest request, Done<v1::TokenizeResponse> done) {
  OnWorker(std::move(request), done, &ProtoConverter::Tokenize);
}

void EngineClient::Detokenize(v1::DetokenizeRequest request, Done<v1::DetokenizeResponse> done) {
  OnWorker(std::move(request), done, &ProtoConverter::Detokenize);
}

void EngineClient::RenderChat(v1::RenderChatRequest request, Done<v1::RenderChatResponse> done) {
  OnWorker(std::move(request), done, &ProtoConverter::RenderChat);
}

void EngineClient::GetModel(v1::GetModelRequest request, Done<v1::GetModelResponse> done) {
  AtOnce(done, [&](const Serving& serving, auto* response) {
    return serving.converter.GetModel(request, response);
  });
}

void EngineClient::GetLoad(Done<v1::GetLoadResponse> done) {
  AtOnce(done, [&](const Serving& serving, auto* response) { return core_.GetLoad(serving, response); });
}

void EngineClient::ListSessions(Done<v1::ListSessionsResponse> done) {
  AtOnce(done, [&](const Serving&, auto* response) { return core_.ListSessions(response); });
}

void EngineClient::DeleteSession(v1::DeleteSessionRequest request, Done<v1::DeleteSessionResponse> done) {
  AtOnce(done, [&](const Serving&, auto*) { return core_.DeleteSession(request); });
}

void EngineClient::SaveSession(v1::SaveSessionRequest request, Done<v1::SaveSessionResponse> done) {
  OnWorker(std::move(request), done, &InferenceCore::SaveSession);
}

void EngineClient::RestoreSession(v1::RestoreSessionRequest request, Done<v1::RestoreSessionResponse> done) {
  OnWorker(std::move(request), done, &InferenceCore::RestoreSession);
}

template <typename Request, typename Response>
void EngineClient::OnWorker(Request request, const Done<Response>& done, CoreCall<Request, Response> call) {
  const auto bytes = static_cast<int64_t>(request.ByteSizeLong());
  const RpcError refusal = core_.OnWorker(
      bytes, [&core = core_, done, call, request = std::move(request)](const Serving& serving) {
        Response response;
        const RpcError error = (core.*call)(serving, request, &response);
        done(error, response);
      });
  if (!refusal.ok()) done(refusal, {});
}

template <typename Request, typename Response>
void EngineClient::OnWorker(Request request, const Done<Response>& done,
                            Converter<Request, Response> convert) {
  const auto bytes = static_cast<int64_t>(request.ByteSizeLong());
  const RpcError refusal =
      core_.OnWorker(bytes, [done, convert, request = std::move(request)](const Serving& serving) {
        Response response;
        const RpcError error = (serving.converter.*convert)(request, &response);
        done(error, response);
      });
  if (!refusal.ok()) done(refusal, {});
}

template <typename Response, typename Answer>
void EngineClient::AtOnce(const Done<Response>& done, const Answer& answer) const {
  const Serving* serving = core_.serving();
  Response response;
  const RpcError error = serving == nullptr ? InferenceCore::LoadingError() : answer(*serving, &response);
  done(error, response);
}

}  // namespace tramontane
