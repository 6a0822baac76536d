// TokenStream: a request's outside handle. The output thread puts updates in; one reader (an RPC) takes them
// out.
//
// Threads: Take, Cancel from the reader's side, any thread; Put* from the output thread only; the engine
// thread touches nothing here but the atomics of `StreamControl`. A slow reader is never waited for: what it
// has not taken is joined (texts and ids of a choice are concatenated), so a stream holds at most one Delta
// per choice, bounded by the request's own max_tokens.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/request/request.h"
#include "engine/threads/mpsc_queue.h"
#include "kernels/core/status.h"
#include "kernels/sampling.h"

namespace tramontane {

// How the bytes of a token's piece become text where the token stands.
enum class PieceUse : uint8_t {
  kAsItIs,
  kBeginsText,  // but for a leading space, which nobody typed
  kSpelledOut,  // a control token that the reader is told of
};

struct TokenInfo {
  int32_t token = -1;
  float logprob = 0.0f;
  int32_t rank = 0;
  std::vector<TokenLogprob> top = {};  // highest first
  PieceUse use = PieceUse::kAsItIs;    // set by the output thread
};

// Once per request, when its prefill begins to give results (with the first Delta or Finished at the latest).
struct StreamStarted {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  uint64_t seed = 0;  // given or drawn
  std::vector<TokenInfo>
      prompt_logprobs;  // [prompt_tokens - 1] when asked for; entry i is of prompt token i+1. Where there
                        // are candidates, of their tokens, one candidate after the other
  std::vector<int32_t> prompt;  // token ids, when asked for
};

// Where a token stands that the reader wants to be told of: one of OutputParams::marked_ids.
struct TextMark {
  int32_t token = -1;
  int32_t at = 0;  // the byte of the text behind it; where the token is spelled out, behind its spelling
};

struct StreamDelta {
  int32_t choice = 0;
  std::vector<int32_t> token_ids = {};
  std::string text;                      // whole code points only
  std::vector<TokenInfo> logprobs = {};  // one per token id when asked for
  int64_t completion_tokens = 0;         // of the choice so far
  std::vector<TextMark> marks;           // in `text`, in their order; each in one delta of a choice
};

struct StreamFinished {
  int32_t choice = 0;
  FinishReason reason = FinishReason::kStop;
  Status status;               // not OK only with kError
  int32_t stop_token_id = -1;  // with kStop, or kStopSequence by id
  std::string stop_string;     // with kStopSequence by text
  Usage usage;
  Timings timings;
};

// The step that gave a request its first output of a kind, in whichever choice; `timings.finished_ns` is when
// that step was read.
struct FirstOutput {
  Timings timings;
  Usage usage;
};

struct StreamUpdate {
  std::optional<StreamStarted> started;
  // With the delta that has it: the request's first token id, and its first text that was not held back.
  std::optional<FirstOutput> first_ids;
  std::optional<FirstOutput> first_text;
  std::vector<StreamDelta> deltas;  // at most one per choice, by choice
  std::vector<StreamFinished> finished;
  bool done = false;  // nothing will follow; `status` is the request's outcome
  Status status;      // OK, CANCELLED, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE

  bool empty() const { return !started && deltas.empty() && finished.empty() && !done; }
};

class TokenStream;

// Streams that were cancelled, each once, for the engine thread to take: it never looks through all it has.
using CancelledStreams = MpscQueue<const TokenStream*>;

// What readers have yet to take.
struct Unread {
  int64_t tokens = 0;        // of the choice
  int64_t bytes = 0;         // of the stream's deltas, as they lie in memory
  int64_t bytes_of_all = 0;  // of all streams that count together
};
using UnreadBytes = std::atomic<int64_t>;

class TokenStream {
 public:
  // `on_ready` is called on the output thread each time the stream goes from empty to not empty; it must not
  // block. May be null for readers that poll. `cancels` is told of this stream when it is cancelled, and
  // `unread` counts what of it waits; both may be null.
  TokenStream(std::string request_id, std::function<void()> on_ready,
              std::shared_ptr<CancelledStreams> cancels = nullptr,
              std::shared_ptr<UnreadBytes> unread = nullptr);
  ~TokenStream() { *unread_ -= pending_bytes_; }

  const std::string& request_id() const { return request_id_; }

  // ---- reader -----------------------------------------------------------------------------------

  // Everything pending, joined; empty() when there is nothing.
  StreamUpdate Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    *unread_ -= std::exchange(pending_bytes_, 0);
    return std::exchange(pending_, StreamUpdate{});
  }
  // Asks the engine to end the request within one step; the stream then finishes with CANCELLED.
  void Cancel() {
    const bool was_cancelled = cancelled_.exchange(true, std::memory_order_acq_rel);
    if (cancels_ && !was_cancelled) cancels_->Push(this);
  }

  // ---- engine thread ----------------------------------------------------------------------------

  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  // ---- output thread ----------------------------------------------------------------------------

  void PutStarted(StreamStarted started) {
    Put([&](StreamUpdate& pending) { pending.started = std::move(started); });
  }
  // `timings` and `usage`: of the choice, as of the step that gave the last of the delta. What now waits for
  // the reader.
  Unread PutDelta(StreamDelta delta, const Timings& timings = {}, const Usage& usage = {});
  void PutFinished(StreamFinished finished) {
    Put([&](StreamUpdate& pending) { pending.finished.push_back(std::move(finished)); });
  }
  void PutDone(Status status) {
    Put([&](StreamUpdate& pending) {
      pending.done = true;
      pending.status = std::move(status);
    });
  }

 private:
  template <typename Change>
  void Put(Change change) {
    bool was_empty;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      was_empty = pending_.empty();
      change(pending_);
    }
    if (was_empty && on_ready_) on_ready_();
  }

  const std::string request_id_;
  const std::function<void()> on_ready_;
  const std::shared_ptr<CancelledStreams> cancels_;
  const std::shared_ptr<UnreadBytes> unread_;
  std::atomic<bool> cancelled_{false};
  bool had_ids_ = false;   // output thread
  bool had_text_ = false;  // output thread
  std::mutex mutex_;       // guards the rest; taken by the output thread and the reader only
  StreamUpdate pending_;
  int64_t pending_bytes_ = 0;  // of its deltas
};

}  // namespace tramontane
