#include "server/api/shared/call_window.h"

#include <algorithm>
#include <iterator>

#include "server/api/shared/endpoint.h"
#include "server/call/remedy.h"

namespace tramontane {
namespace {

// The request found every place taken; later there may be one.
bool FoundNoRoom(const RpcError& error) {
  return error.code == StatusCode::kResourceExhausted && RemedyOf(error) != Remedy::kNone;
}

constexpr int64_t kCallBytes = 512;  // of one that waits: its place here, and the names of its fields

int64_t HeldBytesOf(const v1::GenerateRequest& request) {
  return kCallBytes + static_cast<int64_t>(request.SpaceUsedLong());
}

// Whether what it starts with takes long to print.
bool HasLongStart(const v1::GenerateRequest& request) {
  constexpr int64_t kManyScores = 4096;
  constexpr int64_t kBytesOfToken = 4;
  const v1::Output& output = request.output();
  const int64_t scores =
      (output.has_prompt_logprobs() ? output.prompt_logprobs() + 1 : 0) + (output.prompt_tokens() ? 1 : 0);
  if (scores == 0) return false;
  if (!request.session().empty()) return true;  // its prompt is longer than what is sent of it
  const int64_t ids = request.token_ids().ids_size();
  const int64_t tokens = ids > 0 ? ids : static_cast<int64_t>(request.ByteSizeLong()) / kBytesOfToken;
  return tokens * scores >= kManyScores;
}

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
  if (requests_.size() > 1) answer_bytes_ = std::make_shared<std::atomic<int64_t>>(0);
}

bool CallWindow::HoldRequests(HeldBytes share) {
  if (requests_.size() == 1) return true;  // it is sent at once
  int64_t bytes = 0;
  for (const v1::GenerateRequest& request : requests_) bytes += HeldBytesOf(request);
  if (!share.TrySet(bytes)) return false;
  held_.emplace(std::move(share));
  return true;
}

RpcError CallWindow::Send(const HttpExchange& exchange, const std::function<void(size_t call)>& on_ready) {
  InferenceCallOptions options;
  options.correlation_id = exchange.request().request_id;
  options.deadline = deadline_;
  options.answer_bytes = answer_bytes_;
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
    const bool starts_long = HasLongStart(request);
    calls_[i] = {.handle = client_.Generate(
                     caller, std::move(request), options, [on_ready, i] { on_ready(i); }, &refusal)};
    if (calls_[i].handle == nullptr) {
      if (refusal.ok()) refusal = ToRpcError(Internal("a call was refused without a reason"));
      most_waiting_ = 1;
      TellUnsent();
      return FoundNoRoom(refusal) && HasFoundRoom() ? RpcError{} : refusal;
    }
    calls_[i].starts_long = starts_long;
    unsent_.pop_front();
    ++waiting_;
  }
  TellUnsent();
  return {};
}

void CallWindow::PutBack(size_t call, InferenceEvents events) {
  calls_[call].put_back = std::move(events);
  put_back_.push_back(call);
}

void CallWindow::AddPutBack(std::vector<size_t>* calls) {
  calls->insert(calls->end(), put_back_.begin(), put_back_.end());
  put_back_.clear();
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
  if (held_) held_->Set(held_->bytes() - HeldBytesOf(requests_[call]));
  requests_[call] = {};
}

bool CallWindow::NoteEnd(size_t call, const RpcError& outcome) {
  --(calls_[call].under_way ? under_way_ : waiting_);
  const bool may_come_again = !calls_[call].under_way && FoundNoRoom(outcome) && HasFoundRoom();
  if (may_come_again) {
    calls_[call] = {};
    unsent_.push_front(call);
    most_waiting_ = 1;
    TellUnsent();
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
  LetGo();
}

void CallWindow::TellUnsent() {
  const auto unsent = static_cast<int64_t>(unsent_.size());
  if (unsent != told_unsent_) client_.NoteUnsent(unsent - told_unsent_);
  told_unsent_ = unsent;
}

void CallWindow::LetGo() {
  unsent_.clear();
  TellUnsent();
  for (v1::GenerateRequest& request : requests_) request = {};
  held_.reset();
}

}  // namespace tramontane
