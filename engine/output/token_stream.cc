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

// As lists take it that grow by doubling.
int64_t DeltaBytes(const StreamDelta& delta) {
  constexpr int64_t kGrowing = 2;
  const int64_t scores = std::ssize(delta.logprobs) * static_cast<int64_t>(sizeof(TokenInfo));
  const int64_t marks = std::ssize(delta.marks) * static_cast<int64_t>(sizeof(TextMark));
  int64_t bytes = kGrowing * (std::ssize(delta.token_ids) * static_cast<int64_t>(sizeof(int32_t)) +
                              std::ssize(delta.text) + scores + marks);
  for (const TokenInfo& info : delta.logprobs) {
    bytes += std::ssize(info.top) * static_cast<int64_t>(sizeof(TokenLogprob));
  }
  return bytes;
}

}  // namespace

TokenStream::TokenStream(std::string request_id, std::function<void()> on_ready,
                         std::shared_ptr<CancelledStreams> cancels, std::shared_ptr<UnreadBytes> unread)
    : request_id_(std::move(request_id)),
      on_ready_(std::move(on_ready)),
      cancels_(std::move(cancels)),
      unread_(unread != nullptr ? std::move(unread) : std::make_shared<UnreadBytes>(0)) {}

Unread TokenStream::PutDelta(StreamDelta delta, const Timings& timings, const Usage& usage) {
  const bool first_ids = !delta.token_ids.empty() && !std::exchange(had_ids_, true);
  const bool first_text = !delta.text.empty() && !std::exchange(had_text_, true);
  const int64_t bytes = DeltaBytes(delta);
  Unread unread;
  Put([&](StreamUpdate& pending) {
    if (first_ids) pending.first_ids = {timings, usage};
    if (first_text) pending.first_text = {timings, usage};
    pending_bytes_ += bytes;
    unread = {.tokens = Join(std::move(delta), &pending.deltas),
              .bytes = pending_bytes_,
              .bytes_of_all = *unread_ += bytes};
  });
  return unread;
}

}  // namespace tramontane
