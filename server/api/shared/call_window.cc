#include "server/api/shared/call_window.h"

#include <algorithm>
#include <iterator>

#include "server/api/shared/endpoint.h"

namespace tramontane {
namespace {

// The request found every place taken; later there may be one.
bool FoundNoRoom(const RpcError& error) { return error.code == StatusCode::kResourceExhausted; }

}  // namespace

CallWindow::CallWindow(InferenceClient& client, std::vector<v1::GenerateRequest> requests,
                       v1::GenerateRequest shared,
                       std::optional<std::chrono::steady_clock::time_point> deadline)
    : client_(client),
      requests_(std::move(requests)),
      shared_(std::move(shared)),
      deadline_(deadline),
      calls_(requests_.size()) {
  for (size_t i = 0; i < requests_.size(); ++i) unsent_.push_back(i);
}

RpcError CallWindow::Send(const HttpExchange& exchange, const std::function<void(size_t call)>& on_ready) {
  InferenceCallOptions options;
  options.correlation_id = exchange.request().request_id;
  options.deadline = deadline_;
  const Caller caller = CallerOf(exchange);
  while (!unsent_.empty() && waiting_ < most_waiting_) {
    const size_t i = unsent_.front();
    // One of many is kept until it is under way: it may have to be sent again.
    const bool is_alone = calls_.size() == 1;
    v1::GenerateRequest request = is_alone ? std::move(requests_[i]) : requests_[i];
    request.MergeFrom(shared_);
    options.continues = HasFoundRoom();
    options.receive_ns = exchange.request().whole_ns - exchange.request().first_byte_ns;
    options.parse_ns = exchange.NowNs() - exchange.request().whole_ns;
    RpcError refusal;
    calls_[i] = {.handle = client_.Generate(
                     caller, std::move(request), options, [on_ready, i] { on_ready(i); }, &refusal)};
    if (calls_[i].handle == nullptr) {
      if (refusal.ok()) refusal = ToRpcError(Internal("a call was refused without a reason"));
      most_waiting_ = 1;
      return FoundNoRoom(refusal) && HasFoundRoom() ? RpcError{} : refusal;
    }
    unsent_.pop_front();
    ++waiting_;
  }
  return {};
}

InferenceEvents CallWindow::Take(size_t call) {
  std::optional<InferenceEvents> before = std::exchange(calls_[call].put_back, std::nullopt);
  if (before && before->done) return *std::move(before);
  InferenceEvents taken = calls_[call].handle->Take();
  if (!before) return taken;
  std::move(taken.events.begin(), taken.events.end(), std::back_inserter(before->events));
  taken.events = std::move(before->events);
  return taken;
}

void CallWindow::NoteUnderWay(size_t call) {
  if (std::exchange(calls_[call].under_way, true)) return;
  --waiting_;
  ++under_way_;
  most_waiting_ = std::min(2 * most_waiting_, kMaxWaitingCalls);
  requests_[call] = {};
}

bool CallWindow::NoteEnd(size_t call, const RpcError& outcome) {
  --(calls_[call].under_way ? under_way_ : waiting_);
  const bool may_come_again = !calls_[call].under_way && FoundNoRoom(outcome) && HasFoundRoom();
  if (may_come_again) {
    calls_[call] = {};
    unsent_.push_front(call);
    most_waiting_ = 1;
    return false;
  }
  calls_[call].ended = true;
  if (outcome.ok()) ++done_;
  return true;
}

void CallWindow::Cancel() {
  for (const Call& call : calls_) {
    if (call.handle != nullptr) call.handle->Cancel();
  }
}

}  // namespace tramontane
