#include "engine/output/token_stream.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tramontane {
namespace {

// Appends `delta` to what the reader has not taken of the same choice; how many tokens these are then.
int64_t Join(StreamDelta delta, std::vector<StreamDelta>* deltas) {
  auto at = std::lower_bound(deltas->begin(), deltas->end(), delta.choice,
                             [](const StreamDelta& d, int32_t choice) { return d.choice < choice; });
  if (at == deltas->end() || at->choice != delta.choice) {
    return std::ssize(deltas->insert(at, std::move(delta))->token_ids);
  }
  at->token_ids.insert(at->token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
  for (const TextMark& mark : delta.marks) {
    at->marks.push_back({mark.token, static_cast<int32_t>(at->text.size()) + mark.at});
  }
  at->text += delta.text;
  std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(at->logprobs));
  at->completion_tokens = delta.completion_tokens;
  return std::ssize(at->token_ids);
}

}  // namespace

TokenStream::TokenStream(std::string request_id, std::function<void()> on_ready,
                         std::shared_ptr<CancelledStreams> cancels)
    : request_id_(std::move(request_id)), on_ready_(std::move(on_ready)), cancels_(std::move(cancels)) {}

void TokenStream::Cancel() {
  const bool was_cancelled = cancelled_.exchange(true, std::memory_order_acq_rel);
  if (cancels_ && !was_cancelled) cancels_->Push(this);
}

StreamUpdate TokenStream::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(pending_, StreamUpdate{});
}

void TokenStream::PutStarted(StreamStarted started) {
  Put([&](StreamUpdate& pending) { pending.started = std::move(started); });
}

int64_t TokenStream::PutDelta(StreamDelta delta, const Timings& timings, const Usage& usage) {
  const bool first_ids = !delta.token_ids.empty() && !std::exchange(had_ids_, true);
  const bool first_text = !delta.text.empty() && !std::exchange(had_text_, true);
  int64_t unread = 0;
  Put([&](StreamUpdate& pending) {
    if (first_ids) pending.first_ids = {timings, usage};
    if (first_text) pending.first_text = {timings, usage};
    unread = Join(std::move(delta), &pending.deltas);
  });
  return unread;
}

void TokenStream::PutFinished(StreamFinished finished) {
  Put([&](StreamUpdate& pending) { pending.finished.push_back(std::move(finished)); });
}

void TokenStream::PutDone(Status status) {
  Put([&](StreamUpdate& pending) {
    pending.done = true;
    pending.status = std::move(status);
  });
}

template <typename Change>
void TokenStream::Put(Change change) {
  bool was_empty;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    was_empty = pending_.empty();
    change(pending_);
  }
  if (was_empty && on_ready_) on_ready_();
}

}  // namespace tramontane
