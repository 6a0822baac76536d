#include "server/api/shared/generation.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "server/api/shared/api_error.h"
#include "server/api/shared/call_window.h"
#include "server/api/shared/generation_timing.h"
#include "server/api/shared/request_timeout.h"
#include "server/api/shared/timing.h"
#include "server/watch/ttft_stages.h"

namespace tramontane {
namespace {

constexpr char kKeepAliveComment[] = ": keep-alive\n\n";

HttpResponse EventStreamHead(std::string first_bytes, HttpHeaders headers) {
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = std::move(headers);
  head.headers.emplace_back("cache-control", "no-cache");
  head.headers.emplace_back("x-accel-buffering", "no");
  head.body = std::move(first_bytes);
  return head;
}

ApiError WriterFault(const std::exception& fault) {
  return ToApiError(ToRpcError(Internal(std::string("the answer could not be written: ") + fault.what())));
}

std::optional<std::chrono::steady_clock::time_point> DeadlineOf(const HttpRequest& request) {
  const auto timeout = TimeoutOf(request);
  if (!timeout) return std::nullopt;
  return std::chrono::steady_clock::now() + *timeout;
}

// The calls of one request and their answer. After Start everything happens on the connection's thread, whose
// listener this is; nobody else holds it for long.
class Generation : public HttpListener, public std::enable_shared_from_this<Generation> {
 public:
  Generation(InferenceClient& client, GenerationPlan plan, std::shared_ptr<HttpExchange> exchange)
      : calls_(client, std::move(plan.requests), std::move(plan.shared), DeadlineOf(exchange->request())),
        timing_(plan.timing),
        writer_(std::move(plan.writer)),
        is_stream_(plan.stream),
        headers_(std::move(plan.headers)),
        exchange_(std::move(exchange)) {}

  // On the caller's thread.
  void Start();

  void OnHangUp() override;
  void OnWritten() override;
  void OnSilence() override;
  void OnStop() override;
  void OnTick() override;

 private:
  void Adopt(const RpcError& refusal);
  void SendMore();
  RpcError SendWhileThereIsRoom(const std::shared_ptr<HttpExchange>& exchange);
  void OnReady(size_t call);
  void Pump();
  // Takes what the ready calls have. Returns what to send.
  std::string TakeReady();
  void TellEvents(size_t call, InferenceEvents taken, std::string* bytes);
  void TellWriter(size_t call, std::vector<v1::GenerateResponse> events, std::string* bytes);
  void NoteEnd(size_t call, const RpcError& outcome);
  void Send(std::string bytes);
  void Finish(std::string last_bytes);
  void Fail(const ApiError& error, std::string last_bytes);
  void End();

  CallWindow calls_;
  GenerationTiming timing_;
  const std::unique_ptr<ResponseWriter> writer_;
  const bool is_stream_;
  HttpHeaders headers_;                     // until they are out
  std::shared_ptr<HttpExchange> exchange_;  // null when answered
  std::vector<size_t> ready_;               // calls that said so and were not taken from since
  std::optional<ApiError> failure_;         // of the first call that did not end well
  bool adopted_ = false;                    // the first calls are made
  bool started_ = false;                    // the header is out
  bool writing_ = false;                    // the last write is on its way
  bool pumping_ = false;
};

void Generation::Start() {
  const auto exchange = exchange_;  // from Listen on, the member is the other thread's
  timing_.NoteParsed(exchange->NowNs());
  exchange->Listen(shared_from_this());
  RpcError refusal = SendWhileThereIsRoom(exchange);
  exchange->Post([self = shared_from_this(), refusal = std::move(refusal)] { self->Adopt(refusal); });
}

// Ready calls may have come before.
void Generation::Adopt(const RpcError& refusal) {
  adopted_ = true;
  if (exchange_ == nullptr) return End();  // the client was faster
  if (!refusal.ok()) return Fail(writer_->Explain(calls_.first_unsent(), refusal), {});
  Pump();
}

void Generation::SendMore() {
  if (!adopted_ || exchange_ == nullptr) return;
  const RpcError refusal = SendWhileThereIsRoom(exchange_);
  if (!refusal.ok()) failure_ = writer_->Explain(calls_.first_unsent(), refusal);
}

// Not OK: why the first of those unsent has to fail. The client holds on to its callbacks; this request lives
// no longer for that.
RpcError Generation::SendWhileThereIsRoom(const std::shared_ptr<HttpExchange>& exchange) {
  return calls_.Send(*exchange,
                     [weak = weak_from_this(), weak_exchange = std::weak_ptr(exchange)](size_t call) {
                       const auto open = weak_exchange.lock();
                       if (open == nullptr) return;
                       open->Post([weak, call] {
                         if (const auto self = weak.lock()) self->OnReady(call);
                       });
                     });
}

void Generation::OnReady(size_t call) {
  ready_.push_back(call);
  Pump();
}

void Generation::OnHangUp() { End(); }

void Generation::OnWritten() {
  writing_ = false;
  if (exchange_ != nullptr && timing_.IsOnItsWay()) {
    timing_.NoteDelivered(exchange_->NowNs());
    calls_.NoteDelivered(*timing_.first_call());
  }
  Pump();
}

void Generation::OnSilence() {
  if (is_stream_ && exchange_ != nullptr && !writing_) Send(kKeepAliveComment);
}

void Generation::OnStop() {
  if (exchange_ != nullptr) Fail(ToApiError(ServerStops()), {});
}

void Generation::OnTick() {
  SendMore();
  if (failure_ && exchange_ != nullptr) Fail(*failure_, {});
}

void Generation::Pump() {
  if (pumping_) return;  // a write that was done at once: the loop below goes on
  pumping_ = true;
  const auto self = shared_from_this();
  while (exchange_ != nullptr && !writing_ && adopted_ && !ready_.empty()) {
    try {
      std::string bytes = TakeReady();
      if (failure_) {
        Fail(*failure_, std::move(bytes));
      } else if (calls_.all_done()) {
        Finish(std::move(bytes));
      } else if (is_stream_ && !bytes.empty()) {
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
  const auto before = calls_.progress();
  for (const size_t call : std::exchange(ready_, {})) {
    // A call may be called ready once more than it has something to say, and after it was given up.
    if (calls_.IsOpen(call)) TellEvents(call, calls_.Take(call), &bytes);
  }
  if (calls_.progress() != before && !failure_) SendMore();
  return bytes;
}

// The end of a choice is told with the time that its first content took to leave, so not before it has left.
void Generation::TellEvents(size_t call, InferenceEvents taken, std::string* bytes) {
  if (!taken.events.empty() || (taken.done && taken.outcome.ok())) calls_.NoteUnderWay(call);
  std::vector<v1::GenerateResponse>& events = taken.events;
  const auto is_end = [](const v1::GenerateResponse& event) { return event.has_finished(); };
  const auto end = timing_.wanted() ? std::find_if(events.begin(), events.end(), is_end) : events.end();
  std::vector<v1::GenerateResponse> rest(std::make_move_iterator(end), std::make_move_iterator(events.end()));
  events.erase(end, events.end());
  TellWriter(call, std::move(events), bytes);
  if (!rest.empty()) {
    if (is_stream_ && timing_.IsOnItsWay() && !bytes->empty()) {
      taken.events = std::move(rest);
      calls_.PutBack(call, std::move(taken));
      ready_.push_back(call);
      return;
    }
    const v1::Timings& told = rest.front().finished().timings();
    if (timing_.NoteEnd(call, told, exchange_->request())) writer_->SetTiming(timing_.timings());
    TellWriter(call, std::move(rest), bytes);
  }
  if (taken.done) NoteEnd(call, taken.outcome);
}

void Generation::TellWriter(size_t call, std::vector<v1::GenerateResponse> events, std::string* bytes) {
  if (events.empty()) return;
  const bool is_first_content = !timing_.has_taken() && std::any_of(events.begin(), events.end(), IsContent);
  const int64_t taken_ns = is_first_content ? exchange_->NowNs() : 0;
  if (is_first_content) timing_.NoteTaken(taken_ns);
  *bytes += writer_->OnEvents(call, std::move(events));
  if (timing_.first_call() || !writer_->HasContent()) return;
  timing_.NoteTold(call, is_first_content ? taken_ns : exchange_->NowNs());
}

void Generation::NoteEnd(size_t call, const RpcError& outcome) {
  if (calls_.NoteEnd(call, outcome) && !outcome.ok() && !failure_) {
    failure_ = writer_->Explain(call, outcome);
  }
}

void Generation::Send(std::string bytes) {
  writing_ = true;
  if (started_) return exchange_->Write(std::move(bytes));
  started_ = true;
  exchange_->StartStream(EventStreamHead(std::move(bytes), std::move(headers_)));
}

void Generation::Finish(std::string last_bytes) {
  const auto fault = is_stream_ ? std::nullopt : writer_->Fault();
  if (fault) return Fail(*fault, {});
  last_bytes += writer_->Finish();
  const auto exchange = std::exchange(exchange_, nullptr);
  if (!is_stream_) {
    HttpResponse response;
    response.headers = std::move(headers_);
    const std::string timing = timing_.wanted() ? ServerTimingText(timing_.timings()) : "";
    if (!timing.empty()) response.headers.emplace_back("server-timing", timing);
    response.body = std::move(last_bytes);
    return exchange->Respond(std::move(response));
  }
  if (!started_) exchange->StartStream(EventStreamHead({}, std::move(headers_)));
  exchange->End(std::move(last_bytes));
}

void Generation::Fail(const ApiError& error, std::string last_bytes) {
  const auto exchange = exchange_;
  End();
  if (started_) return exchange->End(std::move(last_bytes) + writer_->Fail(error));
  exchange->Respond(ErrorResponse(error));
}

// Nothing more is said, and nothing more computed. (Until Adopt the calls are another thread's.)
void Generation::End() {
  exchange_ = nullptr;
  if (!adopted_) return;
  calls_.Cancel();
}

}  // namespace

void RunGeneration(InferenceClient& client, GenerationPlan plan, std::shared_ptr<HttpExchange> exchange) {
  TM_CHECK(!plan.requests.empty() && plan.writer != nullptr, "a plan needs requests and a writer");
  std::make_shared<Generation>(client, std::move(plan), std::move(exchange))->Start();
}

}  // namespace tramontane
