#include "server/api/shared/generation.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "server/api/shared/api_error.h"
#include "server/api/shared/endpoint.h"
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

// The request found every place taken; later there may be one.
bool FoundNoRoom(const RpcError& error) { return error.code == StatusCode::kResourceExhausted; }

// The calls of one request and their answer. After Start everything happens on the connection's thread, whose
// listener this is; nobody else holds it for long.
//
// A request of the plan, from left to right, but for one that found no room and goes back to the beginning:
//   unsent -> waiting for its first event -> under way -> done
class Generation : public HttpListener, public std::enable_shared_from_this<Generation> {
 public:
  Generation(InferenceClient& client, GenerationPlan plan, std::shared_ptr<HttpExchange> exchange)
      : client_(client),
        plan_(std::move(plan)),
        deadline_(DeadlineOf(exchange->request())),
        exchange_(std::move(exchange)),
        calls_(plan_.requests.size()) {
    for (size_t i = 0; i < plan_.requests.size(); ++i) unsent_.push_back(i);
  }

  // On the caller's thread.
  void Start();

  void OnHangUp() override;
  void OnWritten() override;
  void OnSilence() override;
  void OnStop() override;
  void OnTick() override;

 private:
  struct Call {
    std::shared_ptr<InferenceCall> handle;  // null: unsent
    bool under_way = false;
    bool ended = false;
    std::optional<InferenceEvents> rest = {};  // taken, and to be told when the first content is out
  };

  void Adopt(const RpcError& refusal);
  void SendMore();
  RpcError SendWhileThereIsRoom(const HttpExchange& exchange,
                                const std::weak_ptr<HttpExchange>& weak_exchange);
  bool HasFoundRoom() const { return waiting_ + under_way_ + done_ > 0; }
  void OnReady(size_t call);
  void Pump();
  // Takes what the ready calls have. Returns what to send.
  std::string TakeReady();
  void TellEvents(size_t call, InferenceEvents taken, std::string* bytes);
  void TellWriter(size_t call, std::vector<v1::GenerateResponse> events, std::string* bytes);
  bool ContentIsOnItsWay() const { return first_call_.has_value() && delivered_ns_ == 0; }
  void SetTiming(size_t call, const v1::Finished& finished);
  void NoteUnderWay(size_t call);
  void NoteEnd(size_t call, const RpcError& outcome);
  void Send(std::string bytes);
  void Finish(std::string last_bytes);
  void Fail(const ApiError& error, std::string last_bytes);
  void End();

  InferenceClient& client_;
  GenerationPlan plan_;
  const std::optional<std::chrono::steady_clock::time_point> deadline_;
  std::shared_ptr<HttpExchange> exchange_;  // null when answered
  std::vector<Call> calls_;                 // [requests]
  std::deque<size_t> unsent_;               // in the order in which they are to be sent
  size_t window_ = kMaxWaitingCalls;        // how many may wait; one where there was no room lately
  size_t waiting_ = 0;
  size_t under_way_ = 0;
  size_t done_ = 0;                  // calls that ended well
  std::vector<size_t> ready_;        // calls that said so and were not taken from since
  std::optional<ApiError> failure_;  // of the first call that did not
  bool adopted_ = false;             // the first calls are made
  bool started_ = false;             // the header is out
  bool writing_ = false;             // the last write is on its way
  // What happened when on the exchange's clock; 0: not yet.
  int64_t parsed_ns_ = 0;             // the first call is made
  int64_t taken_ns_ = 0;              // the first content of a call was taken
  int64_t told_ns_ = 0;               // the writer had content for the client
  int64_t delivered_ns_ = 0;          // and the system has taken it
  std::optional<size_t> first_call_;  // whose content that was
  v1::Timings timing_;                // as the writer was told
  bool pumping_ = false;
};

void Generation::Start() {
  const auto exchange = exchange_;  // from Listen on, the member is the other thread's
  parsed_ns_ = exchange->NowNs();
  exchange->Listen(shared_from_this());
  RpcError refusal = SendWhileThereIsRoom(*exchange, exchange);
  exchange->Post([self = shared_from_this(), refusal = std::move(refusal)] { self->Adopt(refusal); });
}

// Ready calls may have come before.
void Generation::Adopt(const RpcError& refusal) {
  adopted_ = true;
  if (exchange_ == nullptr) return End();  // the client was faster
  if (!refusal.ok()) return Fail(plan_.writer->Explain(unsent_.front(), refusal), {});
  Pump();
}

void Generation::SendMore() {
  if (!adopted_ || exchange_ == nullptr) return;
  const auto exchange = exchange_;
  const RpcError refusal = SendWhileThereIsRoom(*exchange, exchange);
  if (!refusal.ok()) failure_ = plan_.writer->Explain(unsent_.front(), refusal);
}

// Not OK: why the first of those unsent has to fail.
RpcError Generation::SendWhileThereIsRoom(const HttpExchange& exchange,
                                          const std::weak_ptr<HttpExchange>& weak_exchange) {
  InferenceCallOptions options;
  options.correlation_id = exchange.request().request_id;
  options.deadline = deadline_;
  const Caller caller = CallerOf(exchange);
  while (!unsent_.empty() && waiting_ < window_) {
    const size_t i = unsent_.front();
    // The client holds on to its callback; this request lives no longer for that.
    auto on_ready = [weak = weak_from_this(), weak_exchange, i] {
      const auto open = weak_exchange.lock();
      if (open == nullptr) return;
      open->Post([weak, i] {
        if (const auto self = weak.lock()) self->OnReady(i);
      });
    };
    // One of many is kept until it is under way: it may have to be sent again.
    const bool is_alone = calls_.size() == 1;
    v1::GenerateRequest request = is_alone ? std::move(plan_.requests[i]) : plan_.requests[i];
    request.MergeFrom(plan_.shared);
    options.continues = HasFoundRoom();
    options.receive_ns = exchange.request().whole_ns - exchange.request().first_byte_ns;
    options.parse_ns = exchange.NowNs() - exchange.request().whole_ns;
    RpcError refusal;
    calls_[i] = {.handle =
                     client_.Generate(caller, std::move(request), options, std::move(on_ready), &refusal)};
    if (calls_[i].handle == nullptr) {
      if (refusal.ok()) refusal = ToRpcError(Internal("a call was refused without a reason"));
      window_ = 1;
      return FoundNoRoom(refusal) && HasFoundRoom() ? RpcError{} : refusal;
    }
    unsent_.pop_front();
    ++waiting_;
  }
  return {};
}

void Generation::OnReady(size_t call) {
  ready_.push_back(call);
  Pump();
}

void Generation::OnHangUp() { End(); }

void Generation::OnWritten() {
  writing_ = false;
  if (exchange_ != nullptr && ContentIsOnItsWay()) {
    delivered_ns_ = exchange_->NowNs();
    calls_[*first_call_].handle->NoteDelivered();
  }
  Pump();
}

void Generation::OnSilence() {
  if (plan_.stream && exchange_ != nullptr && !writing_) Send(kKeepAliveComment);
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
  const auto before = std::pair(under_way_, done_);
  for (const size_t i : std::exchange(ready_, {})) {
    // A call may be called ready once more than it has something to say, and after it was given up.
    if (calls_[i].handle == nullptr || calls_[i].ended) continue;
    if (calls_[i].rest) {
      TellEvents(i, *std::exchange(calls_[i].rest, std::nullopt), &bytes);
      if (calls_[i].ended || calls_[i].rest) continue;
    }
    TellEvents(i, calls_[i].handle->Take(), &bytes);
  }
  if (std::pair(under_way_, done_) != before && !failure_) SendMore();
  return bytes;
}

// The end of a choice is told with the time that its first content took to leave, so not before it has left.
void Generation::TellEvents(size_t call, InferenceEvents taken, std::string* bytes) {
  if (!taken.events.empty() || (taken.done && taken.outcome.ok())) NoteUnderWay(call);
  std::vector<v1::GenerateResponse>& events = taken.events;
  const auto is_end = [](const v1::GenerateResponse& event) { return event.has_finished(); };
  const auto end = plan_.timing ? std::find_if(events.begin(), events.end(), is_end) : events.end();
  std::vector<v1::GenerateResponse> rest(std::make_move_iterator(end), std::make_move_iterator(events.end()));
  events.erase(end, events.end());
  TellWriter(call, std::move(events), bytes);
  if (!rest.empty()) {
    if (plan_.stream && ContentIsOnItsWay() && !bytes->empty()) {
      taken.events = std::move(rest);
      calls_[call].rest = std::move(taken);
      ready_.push_back(call);
      return;
    }
    SetTiming(call, rest.front().finished());
    TellWriter(call, std::move(rest), bytes);
  }
  if (taken.done) NoteEnd(call, taken.outcome);
}

void Generation::TellWriter(size_t call, std::vector<v1::GenerateResponse> events, std::string* bytes) {
  if (events.empty()) return;
  const bool is_first_content = taken_ns_ == 0 && std::any_of(events.begin(), events.end(), IsContent);
  if (is_first_content) taken_ns_ = exchange_->NowNs();
  *bytes += plan_.writer->OnEvents(call, std::move(events));
  if (first_call_ || !plan_.writer->HasContent()) return;
  first_call_ = call;
  told_ns_ = is_first_content ? taken_ns_ : exchange_->NowNs();
}

// The middle is the call's to know: what it was in the engine. What a dialect has kept back (half a call of a
// tool) was held as well.
void Generation::SetTiming(size_t call, const v1::Finished& finished) {
  if (first_call_.value_or(call) != call) return;
  const v1::Timings& told = finished.timings();
  timing_.Clear();
  timing_.set_chunks(told.chunks());
  timing_.set_cached_tokens(told.cached_tokens());
  timing_.set_preemptions(told.preemptions());
  if (first_call_ && told.has_hold_ms()) {
    const HttpRequest& request = exchange_->request();
    TtftStages stages(request.first_byte_ns);
    stages.End(TtftStage::kReceive, request.whole_ns);
    stages.End(TtftStage::kParse, parsed_ns_);
    for (const TtftStage stage : {TtftStage::kTokenize, TtftStage::kQueue, TtftStage::kPrefillRun,
                                  TtftStage::kPrefillWait, TtftStage::kSample}) {
      stages.Take(stage, TtftStages::NsOf(told, stage));
    }
    stages.Take(TtftStage::kHold, TtftStages::NsOf(told, TtftStage::kHold) + told_ns_ - taken_ns_);
    stages.End(TtftStage::kDeliver, delivered_ns_);  // 0 where nothing is streamed: at once
    stages.ToProto(&timing_);
  }
  plan_.writer->SetTiming(timing_);
}

void Generation::NoteUnderWay(size_t call) {
  if (std::exchange(calls_[call].under_way, true)) return;
  --waiting_;
  ++under_way_;
  window_ = std::min(2 * window_, kMaxWaitingCalls);
  plan_.requests[call] = {};
}

void Generation::NoteEnd(size_t call, const RpcError& outcome) {
  --(calls_[call].under_way ? under_way_ : waiting_);
  const bool may_come_again = !calls_[call].under_way && FoundNoRoom(outcome) && HasFoundRoom();
  if (may_come_again) {
    calls_[call] = {};
    unsent_.push_front(call);
    window_ = 1;
    return;
  }
  calls_[call].ended = true;
  if (outcome.ok()) {
    ++done_;
  } else if (!failure_) {
    failure_ = plan_.writer->Explain(call, outcome);
  }
}

void Generation::Send(std::string bytes) {
  writing_ = true;
  if (started_) return exchange_->Write(std::move(bytes));
  started_ = true;
  exchange_->StartStream(EventStreamHead(std::move(bytes), std::move(plan_.headers)));
}

void Generation::Finish(std::string last_bytes) {
  const auto fault = plan_.stream ? std::nullopt : plan_.writer->Fault();
  if (fault) return Fail(*fault, {});
  last_bytes += plan_.writer->Finish();
  const auto exchange = std::exchange(exchange_, nullptr);
  if (!plan_.stream) {
    HttpResponse response;
    response.headers = std::move(plan_.headers);
    const std::string timing = plan_.timing ? ServerTimingText(timing_) : "";
    if (!timing.empty()) response.headers.emplace_back("server-timing", timing);
    response.body = std::move(last_bytes);
    return exchange->Respond(std::move(response));
  }
  if (!started_) exchange->StartStream(EventStreamHead({}, std::move(plan_.headers)));
  exchange->End(std::move(last_bytes));
}

void Generation::Fail(const ApiError& error, std::string last_bytes) {
  const auto exchange = exchange_;
  End();
  if (started_) return exchange->End(std::move(last_bytes) + plan_.writer->Fail(error));
  exchange->Respond(ErrorResponse(error));
}

// Nothing more is said, and nothing more computed. (Until Adopt the calls are another thread's.)
void Generation::End() {
  exchange_ = nullptr;
  if (!adopted_) return;
  for (const Call& call : calls_) {
    if (call.handle != nullptr) call.handle->Cancel();
  }
}

}  // namespace

void RunGeneration(InferenceClient& client, GenerationPlan plan, std::shared_ptr<HttpExchange> exchange) {
  TM_CHECK(!plan.requests.empty() && plan.writer != nullptr, "a plan needs requests and a writer");
  std::make_shared<Generation>(client, std::move(plan), std::move(exchange))->Start();
}

}  // namespace tramontane
