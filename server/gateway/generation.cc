#include "server/gateway/generation.h"

#include <exception>
#include <optional>
#include <utility>

#include "kernels/core/check.h"
#include "server/gateway/api_error.h"

namespace tramontane {
namespace {

constexpr char kKeepAliveComment[] = ": keep-alive\n\n";

HttpResponse EventStreamHead(std::string first_bytes) {
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = {{"cache-control", "no-cache"}, {"x-accel-buffering", "no"}};
  head.body = std::move(first_bytes);
  return head;
}

ApiError WriterFault(const std::exception& fault) {
  return ToApiError(ToRpcError(Internal(std::string("the answer could not be written: ") + fault.what())));
}

// The calls of one request and their answer. After Start everything happens on the connection's thread, whose
// listener this is; nobody else holds it for long.
class Generation : public HttpListener, public std::enable_shared_from_this<Generation> {
 public:
  Generation(GenerationPlan plan, std::shared_ptr<HttpExchange> exchange)
      : plan_(std::move(plan)), exchange_(std::move(exchange)) {}

  // On the caller's thread.
  void Start(InferenceClient& client);

  void OnHangUp() override;
  void OnWritten() override;
  void OnSilence() override;
  void OnStop() override;

 private:
  void Adopt(std::vector<std::shared_ptr<InferenceCall>> calls, const RpcError& refusal);
  void OnReady(size_t call);
  void Pump();
  // Takes what the ready calls have. Returns what to send.
  std::string TakeReady();
  void Send(std::string bytes);
  void Finish(std::string last_bytes);
  void Fail(const ApiError& error, std::string last_bytes);
  void End();

  GenerationPlan plan_;
  std::shared_ptr<HttpExchange> exchange_;  // null when answered
  std::vector<std::shared_ptr<InferenceCall>> calls_;
  std::vector<size_t> ready_;        // calls that said so and were not taken from since
  std::vector<bool> ended_;          // [calls]
  size_t done_ = 0;                  // calls that ended well
  std::optional<ApiError> failure_;  // of the first call that did not
  bool started_ = false;             // the header is out
  bool writing_ = false;             // the last write is on its way
  bool pumping_ = false;
};

void Generation::Start(InferenceClient& client) {
  const auto exchange = exchange_;  // from Listen on, the member is the other thread's
  exchange->Listen(shared_from_this());
  InferenceCallOptions options;
  options.correlation_id = exchange->request().request_id;
  std::vector<std::shared_ptr<InferenceCall>> calls;
  RpcError refusal;
  for (size_t i = 0; i < plan_.requests.size() && refusal.ok(); ++i) {
    // The client holds on to its callback; this request lives no longer for that.
    auto on_ready = [weak = weak_from_this(), weak_exchange = std::weak_ptr<HttpExchange>(exchange), i] {
      const auto open = weak_exchange.lock();
      if (open == nullptr) return;
      open->Post([weak, i] {
        if (const auto self = weak.lock()) self->OnReady(i);
      });
    };
    auto call = client.Generate(std::move(plan_.requests[i]), options, std::move(on_ready), &refusal);
    if (call == nullptr) {
      if (refusal.ok()) refusal = ToRpcError(Internal("a call was refused without a reason"));
    } else {
      calls.push_back(std::move(call));
    }
  }
  exchange->Post([self = shared_from_this(), calls = std::move(calls),
                  refusal = std::move(refusal)]() mutable { self->Adopt(std::move(calls), refusal); });
}

// Ready calls may have come before their calls.
void Generation::Adopt(std::vector<std::shared_ptr<InferenceCall>> calls, const RpcError& refusal) {
  calls_ = std::move(calls);
  if (exchange_ == nullptr) return End();  // the client was faster
  if (!refusal.ok()) return Fail(plan_.writer->Explain(calls_.size(), refusal), {});
  Pump();
}

void Generation::OnReady(size_t call) {
  ready_.push_back(call);
  Pump();
}

void Generation::OnHangUp() { End(); }

void Generation::OnWritten() {
  writing_ = false;
  Pump();
}

void Generation::OnSilence() {
  if (plan_.stream && exchange_ != nullptr && !writing_) Send(kKeepAliveComment);
}

void Generation::OnStop() {
  if (exchange_ != nullptr) Fail(DrainingError(), {});
}

void Generation::Pump() {
  if (pumping_) return;  // a write that was done at once: the loop below goes on
  pumping_ = true;
  const auto self = shared_from_this();
  while (exchange_ != nullptr && !writing_ && !calls_.empty() && !ready_.empty()) {
    try {
      std::string bytes = TakeReady();
      if (failure_) {
        Fail(*failure_, std::move(bytes));
      } else if (done_ == calls_.size()) {
        Finish(std::move(bytes));
      } else if (plan_.stream && !bytes.empty()) {
        Send(std::move(bytes));
      }
    } catch (const std::exception& fault) {
      Fail(WriterFault(fault), {});
    }
  }
  pumping_ = false;
}

std::string Generation::TakeReady() {
  std::string bytes;
  ended_.resize(calls_.size());
  for (const size_t call : std::exchange(ready_, {})) {
    if (ended_[call]) continue;  // a call may be called ready once more than it has something to say
    InferenceEvents taken = calls_[call]->Take();
    if (!taken.events.empty()) bytes += plan_.writer->OnEvents(call, std::move(taken.events));
    if (!taken.done) continue;
    ended_[call] = true;
    if (taken.outcome.ok()) {
      ++done_;
    } else if (!failure_) {
      failure_ = plan_.writer->Explain(call, taken.outcome);
    }
  }
  return bytes;
}

void Generation::Send(std::string bytes) {
  writing_ = true;
  if (started_) return exchange_->Write(std::move(bytes));
  started_ = true;
  exchange_->StartStream(EventStreamHead(std::move(bytes)));
}

void Generation::Finish(std::string last_bytes) {
  const auto fault = plan_.stream ? std::nullopt : plan_.writer->Fault();
  if (fault) return Fail(*fault, {});
  last_bytes += plan_.writer->Finish();
  const auto exchange = std::exchange(exchange_, nullptr);
  if (!plan_.stream) {
    HttpResponse response;
    response.body = std::move(last_bytes);
    return exchange->Respond(std::move(response));
  }
  if (!started_) exchange->StartStream(EventStreamHead({}));
  exchange->End(std::move(last_bytes));
}

void Generation::Fail(const ApiError& error, std::string last_bytes) {
  const auto exchange = exchange_;
  End();
  if (started_) return exchange->End(std::move(last_bytes) + plan_.writer->Fail(error));
  exchange->Respond(ErrorResponse(error));
}

// Nothing more is said, and nothing more computed.
void Generation::End() {
  exchange_ = nullptr;
  for (const auto& call : calls_) call->Cancel();
}

}  // namespace

void RunGeneration(InferenceClient& client, GenerationPlan plan, std::shared_ptr<HttpExchange> exchange) {
  TM_CHECK(!plan.requests.empty() && plan.writer != nullptr, "a plan needs requests and a writer");
  std::make_shared<Generation>(std::move(plan), std::move(exchange))->Start(client);
}

}  // namespace tramontane
