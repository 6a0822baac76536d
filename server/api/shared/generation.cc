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
#include "server/api/shared/answer_record.h"
#include "server/api/shared/api_error.h"
#include "server/api/shared/call_window.h"
#include "server/api/shared/endpoint.h"
#include "server/api/shared/event_counts.h"
#include "server/api/shared/generation_timing.h"
#include "server/api/shared/request_timeout.h"
#include "server/api/shared/started_headers.h"
#include "server/api/shared/timing.h"
#include "server/watch/ttft_stages.h"

namespace tramontane {
namespace {

constexpr int64_t kLongAnswerBytes = 1 << 20;  // that takes long to print

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
// listener this is; nobody else holds it for long. But what takes long is lent to a handler thread: the
// calls, the writer, the timing and the failure are that thread's until it gives them back.
class Generation : public HttpListener, public std::enable_shared_from_this<Generation> {
 public:
  Generation(InferenceClient& client, GenerationPlan plan, std::shared_ptr<GatewayExchange> exchange)
      : exchange_(std::move(exchange)),
        record_(RecordOf(exchange_->request())),
        calls_(client, std::move(plan.requests), std::move(plan.shared), DeadlineOf(exchange_->request())),
        timing_(plan.timing),
        counts_(std::move(plan.counts), CallerOf(*exchange_)),
        writer_(std::move(plan.writer)),
        is_stream_(plan.stream),
        room_(plan.room),
        headers_(std::move(plan.headers)),
        names_(std::move(plan.names)) {
    if (record_ == nullptr) record_ = std::make_shared<AnswerRecord>();
  }

  // On the caller's thread.
  void Start();

  void OnHangUp() override;
  void OnWritten() override;
  void OnSilence() override;
  void OnStop() override;
  void OnTick() override;

 private:
  using Exchange = std::shared_ptr<GatewayExchange>;

  void Adopt(const RpcError& refusal);
  void SendMore(const Exchange& exchange);
  RpcError SendWhileThereIsRoom(const Exchange& exchange);
  void OnReady(size_t call);
  void Pump();
  bool IsLong() const;
  bool TryLend();
  void TakeBack(std::string bytes);
  // Tells the writer what the ready calls have. Returns what to send, to the last byte where all are done.
  std::string Work(const std::vector<size_t>& ready, const Exchange& exchange);
  std::string TakeFrom(const std::vector<size_t>& ready, const Exchange& exchange);
  void TellEvents(size_t call, InferenceEvents taken, const HttpExchange& exchange, std::string* bytes);
  void TellWriter(size_t call, std::vector<v1::GenerateResponse> events, const HttpExchange& exchange,
                  std::string* bytes);
  void NoteEnd(size_t call, const RpcError& outcome);
  void Act(std::string bytes);
  void Send(std::string bytes);
  void Finish(std::string last_bytes);
  void Fail(const ApiError& error, std::string last_bytes);
  void End();

  Exchange exchange_;  // null when answered
  std::shared_ptr<AnswerRecord> record_;
  CallWindow calls_;
  GenerationTiming timing_;
  EventCounts counts_;
  const std::unique_ptr<ResponseWriter> writer_;
  const bool is_stream_;
  AnswerRoom room_;
  HttpHeaders headers_;  // until they are out
  const std::optional<FieldNames> names_;
  std::vector<size_t> ready_;  // calls that said so and were not taken from since
  std::optional<ApiError> failure_;
  bool lent_ = true;      // at first to the thread that makes the first calls
  bool started_ = false;  // the header is out
  bool writing_ = false;  // the last write is on its way
  bool lagging_ = false;  // the client is slow to take it, so much may have come meanwhile
  bool stopped_ = false;  // the server stops, and what is lent has to come back to say so
  bool pumping_ = false;
};

void Generation::Start() {
  const auto exchange = exchange_;  // from Listen on, the member is the other thread's
  timing_.NoteParsed(exchange->NowNs());
  HeldBytes share = exchange->NewShare();
  const int64_t most = share.budget().max_bytes();
  if (!calls_.HoldRequests(std::move(share))) {
    return exchange->Fail(ToApiError(TooManyBodyBytes(most)));
  }
  exchange->Listen(shared_from_this());
  RpcError refusal = SendWhileThereIsRoom(exchange);
  exchange->Post(
      [exchange, self = shared_from_this(), refusal = std::move(refusal)] { self->Adopt(refusal); });
}

// Ready calls may have come before.
void Generation::Adopt(const RpcError& refusal) {
  lent_ = false;
  if (exchange_ == nullptr) return End();  // the client was faster
  if (!refusal.ok()) return Fail(writer_->Explain(calls_.first_unsent(), refusal), {});
  Pump();
}

void Generation::SendMore(const Exchange& exchange) {
  const RpcError refusal = SendWhileThereIsRoom(exchange);
  if (!refusal.ok()) failure_ = writer_->Explain(calls_.first_unsent(), refusal);
}

// Not OK: why the first of those unsent has to fail. The client holds on to its callbacks; this request lives
// no longer for that.
RpcError Generation::SendWhileThereIsRoom(const Exchange& exchange) {
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
  if (exchange_ != nullptr && !lent_ && timing_.IsOnItsWay()) {
    timing_.NoteDelivered(exchange_->NowNs());
    calls_.NoteDelivered(*timing_.first_call());
  }
  Pump();
}

void Generation::OnSilence() {
  if (is_stream_ && exchange_ != nullptr && !writing_ && !lent_) Send(kKeepAliveComment);
}

void Generation::OnStop() {
  if (exchange_ == nullptr) return;
  stopped_ = lent_ && started_;
  if (!stopped_) Fail(ToApiError(ServerStops()), {});
}

void Generation::OnTick() {
  if (lent_ || exchange_ == nullptr) return;
  lagging_ = lagging_ || writing_;
  SendMore(exchange_);
  if (failure_) Fail(*failure_, {});
}

void Generation::Pump() {
  if (pumping_) return;  // a write that was done at once: the loop below goes on
  pumping_ = true;
  const auto self = shared_from_this();
  while (exchange_ != nullptr && !writing_ && !lent_ && !ready_.empty()) {
    if (!IsLong() || !TryLend()) Act(Work(std::exchange(ready_, {}), exchange_));
  }
  pumping_ = false;
}

bool Generation::IsLong() const {
  if (lagging_ || (!is_stream_ && writer_->held_bytes() >= kLongAnswerBytes)) return true;
  return std::any_of(ready_.begin(), ready_.end(), [this](size_t call) { return calls_.StartsLong(call); });
}

// False: the handlers have too much to do.
bool Generation::TryLend() {
  lent_ = true;
  lagging_ = false;
  std::vector<size_t> ready = std::exchange(ready_, {});
  const bool is_taken = exchange_->TryOnHandler([exchange = exchange_, self = shared_from_this(), ready] {
    const auto bytes = std::make_shared<std::string>(self->Work(ready, exchange));
    exchange->Post([exchange, self, bytes] { self->TakeBack(std::move(*bytes)); });
  });
  if (is_taken) return true;
  lent_ = false;
  ready_ = std::move(ready);
  return false;
}

void Generation::TakeBack(std::string bytes) {
  lent_ = false;
  if (exchange_ == nullptr) return End();
  if (stopped_) return Fail(ToApiError(ServerStops()), std::move(bytes));
  Act(std::move(bytes));
  Pump();
}

std::string Generation::Work(const std::vector<size_t>& ready, const Exchange& exchange) {
  try {
    std::string bytes = TakeFrom(ready, exchange);
    if (!failure_) failure_ = room_.Hold(writer_->held_bytes());
    if (failure_ || !calls_.all_done()) return bytes;
    if (!is_stream_) failure_ = writer_->Fault();
    if (failure_) return {};
    return bytes.empty() ? writer_->Finish() : bytes + writer_->Finish();
  } catch (const std::exception& fault) {
    failure_ = WriterFault(fault);
    return {};
  }
}

std::string Generation::TakeFrom(const std::vector<size_t>& ready, const Exchange& exchange) {
  std::string bytes;
  const auto before = calls_.progress();
  for (const size_t call : ready) {
    // A call may be called ready once more than it has something to say, and after it was given up.
    if (calls_.IsOpen(call)) TellEvents(call, calls_.Take(call), *exchange, &bytes);
  }
  if (calls_.progress() != before && !failure_) SendMore(exchange);
  return bytes;
}

// The end of a choice is told with the time that its first content took to leave, so not before it has left.
void Generation::TellEvents(size_t call, InferenceEvents taken, const HttpExchange& exchange,
                            std::string* bytes) {
  if (!taken.events.empty() || (taken.done && taken.outcome.ok())) calls_.NoteUnderWay(call);
  std::vector<v1::GenerateResponse>& events = taken.events;
  if (!events.empty() && events.front().has_started() && names_) {
    AddStartedHeaders(events.front().started(), *names_, &headers_);
  }
  const auto is_end = [](const v1::GenerateResponse& event) { return event.has_finished(); };
  const auto end = timing_.wanted() ? std::find_if(events.begin(), events.end(), is_end) : events.end();
  std::vector<v1::GenerateResponse> rest(std::make_move_iterator(end), std::make_move_iterator(events.end()));
  events.erase(end, events.end());
  TellWriter(call, std::move(events), exchange, bytes);
  if (!rest.empty()) {
    if (is_stream_ && timing_.IsOnItsWay() && !bytes->empty()) {
      taken.events = std::move(rest);
      calls_.PutBack(call, std::move(taken));
      return;
    }
    const v1::Timings& told = rest.front().finished().timings();
    if (timing_.NoteEnd(call, told, exchange.request())) writer_->SetTiming(timing_.timings());
    TellWriter(call, std::move(rest), exchange, bytes);
  }
  if (taken.done) NoteEnd(call, taken.outcome);
}

void Generation::TellWriter(size_t call, std::vector<v1::GenerateResponse> events,
                            const HttpExchange& exchange, std::string* bytes) {
  if (events.empty()) return;
  for (const v1::GenerateResponse& event : events) {
    record_->NoteEvent(call, event);
    counts_.Note(call, event);
  }
  const bool is_first_content = !timing_.has_taken() && std::any_of(events.begin(), events.end(), IsContent);
  const int64_t taken_ns = is_first_content ? exchange.NowNs() : 0;
  if (is_first_content) timing_.NoteTaken(taken_ns);
  *bytes += writer_->OnEvents(call, std::move(events));
  if (timing_.first_call() || !writer_->HasContent()) return;
  record_->NoteContent();
  timing_.NoteTold(call, is_first_content ? taken_ns : exchange.NowNs());
}

void Generation::NoteEnd(size_t call, const RpcError& outcome) {
  if (calls_.NoteEnd(call, outcome) && !outcome.ok() && !failure_) {
    failure_ = writer_->Explain(call, outcome);
  }
}

void Generation::Act(std::string bytes) {
  calls_.AddPutBack(&ready_);
  if (failure_) return Fail(*failure_, std::move(bytes));
  if (calls_.all_done()) return Finish(std::move(bytes));
  if (is_stream_ && !bytes.empty()) Send(std::move(bytes));
}

void Generation::Send(std::string bytes) {
  writing_ = true;
  if (started_) return exchange_->Write(std::move(bytes));
  started_ = true;
  exchange_->StartStream(EventStreamHead(std::move(bytes), std::move(headers_)));
}

void Generation::Finish(std::string last_bytes) {
  const auto exchange = std::exchange(exchange_, nullptr);
  room_.LetGo();
  counts_.NoteStages(timing_, exchange->request());
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
  if (!started_) return exchange->Fail(error);
  record_->NoteError(error, /*midway=*/true);
  exchange->EndFailed(error, std::move(last_bytes) + writer_->Fail(error));
}

// Nothing more is said, and nothing more computed. (While the calls are lent, that is done when they come
// back.)
void Generation::End() {
  const Exchange exchange = std::exchange(exchange_, nullptr);  // outlives what was charged through it
  if (lent_) return;
  room_.LetGo();
  calls_.Cancel();
}

}  // namespace

void RunGeneration(InferenceClient& client, GenerationPlan plan, std::shared_ptr<GatewayExchange> exchange) {
  TM_CHECK(!plan.requests.empty() && plan.writer != nullptr, "a plan needs requests and a writer");
  if (const auto record = RecordOf(exchange->request())) record->NoteCalls(plan.requests, plan.shared);
  std::make_shared<Generation>(client, std::move(plan), std::move(exchange))->Start();
}

}  // namespace tramontane
