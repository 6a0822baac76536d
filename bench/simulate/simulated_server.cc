#include "bench/simulate/simulated_server.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>
#include <utility>

#include "engine/threads/signal.h"
#include "kernels/core/check.h"

namespace tramontane::simulate {
namespace {

using load::Outcome;
using load::RequestRecord;

constexpr int32_t kVocabulary = std::numeric_limits<int32_t>::max();  // whatever the prompts are made of
constexpr int64_t kRefusalNs = 1'000'000;  // until a refusal is there, so that whoever sends on takes time

Request RequestOf(int64_t number, std::vector<int32_t> prompt, int32_t output_tokens, int64_t now_ns) {
  Request request;
  request.id = std::to_string(number);
  request.prompt = std::move(prompt);
  request.sampling.seed = static_cast<uint64_t>(number);
  request.stopping.max_tokens = output_tokens;
  request.stopping.ignore_eos = true;
  request.received_ns = now_ns;
  return request;
}

int64_t NumberOf(const StepRow& row) {
  const std::string& id = row.sequence->request->id;
  int64_t number = 0;
  std::from_chars(id.data(), id.data() + id.size(), number);
  return number;
}

int32_t HttpStatusOf(const Status& refusal) {
  return refusal.code() == StatusCode::kResourceExhausted ? 429 : 400;
}

}  // namespace

void SimulatedClock::WaitUntil(int64_t ns) {
  while (!woken_ && events_ != nullptr && events_->NextNs() < ns) {
    now_ns_ = std::max(now_ns_, events_->NextNs());
    events_->Happen(now_ns_);
  }
  if (!woken_) now_ns_ = std::max(now_ns_, ns);
  woken_ = false;
}

// An engine and what it works with, in the order in which they are made.
struct SimulatedServer::Session {
  Session(const Simulation& simulation, std::function<int64_t(const StepPlan&)> step_ns,
          std::function<void(const StepRow&, int64_t)> on_token)
      : runner(clock, std::move(step_ns), std::move(on_token)),
        engine(simulation.limits, {kVocabulary, {}, simulation.kv_layout, simulation.costs}, runner, nullptr,
               clock) {}

  EngineTime clock;
  SimulatedRunner runner;
  Engine engine;
};

SimulatedServer::SimulatedServer(const Simulation& simulation, SimulatedClock& clock)
    : simulation_(simulation),
      clock_(clock),
      keys_(simulation.kv_layout, simulation.limits.attended_keys_per_token) {
  clock_.Attach(this);
}

SimulatedServer::~SimulatedServer() { clock_.Attach(nullptr); }

void SimulatedServer::Send(load::OutgoingRequest request, Done done) {
  const int64_t number = next_call_++;
  Call call;
  call.done = std::move(done);
  call.tokens_to_go = request.output_tokens;
  RequestRecord& record = call.record;
  record.index = request.index;
  record.class_index = request.class_index;
  record.request_id = std::move(request.request_id);
  record.intended_ns = request.intended_ns;
  record.sent_ns = clock_.Now();
  record.connected_ns = record.sent_ns;
  record.input_tokens = request.input_tokens;
  record.output_tokens_from = load::TokenCountFrom::kUsage;
  call.deadline_ns = record.sent_ns + request.deadline_ns;
  Submit(number, std::move(request.ids), &call);
  timeouts_.emplace(call.deadline_ns, number);
  calls_.emplace(number, std::move(call));
}

void SimulatedServer::Submit(int64_t number, std::vector<int32_t> prompt, Call* call) {
  if (session_ == nullptr) {
    session_ = std::make_unique<Session>(
        simulation_,
        [this](const StepPlan& plan) { return StepNs(plan, simulation_.work, keys_, simulation_.device); },
        [this](const StepRow& row, int64_t now_ns) { TakeToken(row, now_ns); });
  }
  session_->clock.AdvanceTo(clock_.Now());
  auto stream = session_->engine.Submit(
      RequestOf(number, std::move(prompt), call->tokens_to_go, clock_.Now()), nullptr);
  if (stream.ok()) {
    call->stream = *std::move(stream);
    engine_works_ = true;
    return;
  }
  call->record.status = HttpStatusOf(stream.status());
  call->record.error = stream.status().ToString();
  call->record.headers_ns = clock_.Now() + kRefusalNs;
  timeouts_.emplace(clock_.Now() + kRefusalNs, number);
}

// As the device gives it: the engine's clock is at the end of the step that is collected.
void SimulatedServer::TakeToken(const StepRow& row, int64_t now_ns) {
  const int64_t number = NumberOf(row);
  const auto at = calls_.find(number);
  if (at == calls_.end() || at->second.tokens_to_go == 0) return;  // ended while the step was under way
  at->second.record.content_ns.push_back(now_ns);
  if (--at->second.tokens_to_go == 0) ends_.emplace_back(now_ns, number);
}

int64_t SimulatedServer::NextNs() const {
  int64_t next = engine_works_ ? session_->clock.NowNs() : kNever;
  if (!ends_.empty()) next = std::min(next, ends_.front().first);
  if (!timeouts_.empty()) next = std::min(next, timeouts_.begin()->first);
  return next;
}

void SimulatedServer::Happen(int64_t now_ns) {
  if (!EndWhatIsDue(now_ns)) StepEngine();
}

// False: nothing was.
bool SimulatedServer::EndWhatIsDue(int64_t now_ns) {
  bool any = false;
  for (; !ends_.empty() && ends_.front().first <= now_ns; any = true) {
    const int64_t number = ends_.front().second;
    ends_.pop_front();
    End(number, Outcome::kOk);
  }
  for (; !timeouts_.empty() && timeouts_.begin()->first <= now_ns; any = true) {
    const int64_t number = timeouts_.begin()->second;
    const bool refused = calls_.at(number).stream == nullptr;
    End(number, refused ? Outcome::kHttpError : Outcome::kTimeout);
  }
  return any;
}

void SimulatedServer::StepEngine() {
  const StepOutcome outcome = session_->engine.Step();
  TM_CHECK(session_->engine.fatal().ok(), "a device that is not there was lost");
  // The output thread is behind; how long it takes is no time of the simulation.
  if (outcome == StepOutcome::kNoRoom) session_->engine.WaitForWork(Signal::kForever);
  engine_works_ = outcome != StepOutcome::kNothingToDo;
}

void SimulatedServer::End(int64_t number, Outcome outcome) {
  auto call = calls_.extract(number);
  if (call.empty()) return;  // timed out before its end
  RequestRecord& record = call.mapped().record;
  timeouts_.erase({call.mapped().deadline_ns, number});
  timeouts_.erase({record.sent_ns + kRefusalNs, number});
  // What the device gives later than now is not seen any more.
  std::erase_if(record.content_ns, [&](int64_t ns) { return ns > clock_.Now(); });
  record.output_tokens = static_cast<int32_t>(record.content_ns.size());
  record.outcome = outcome;
  if (!record.content_ns.empty()) {
    record.status = 200;
    record.headers_ns = record.first_any_ns = record.content_ns.front();
  }
  if (outcome == Outcome::kOk) {
    record.done_ns = record.content_ns.back();
  } else if (call.mapped().stream != nullptr) {
    call.mapped().stream->Cancel();
    record.error =
        outcome == Outcome::kTimeout ? "no end within the limit" : "under way at the end of the run";
  }
  call.mapped().done(std::move(record));
}

void SimulatedServer::Abort() {
  last_load_ = engine_load();
  while (!calls_.empty()) End(calls_.begin()->first, Outcome::kUnfinished);
  ends_.clear();
  timeouts_.clear();
  engine_works_ = false;
  session_.reset();
}

EngineLoad SimulatedServer::engine_load() const {
  return session_ == nullptr ? last_load_ : session_->engine.Load();
}

}  // namespace tramontane::simulate
