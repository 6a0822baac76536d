// OutputProcessor: the output thread. Takes what steps produced, detokenises, matches stop strings, and hands
// text to the streams.
//
// Threads: Back, Push from the engine thread; it owns the output thread, which runs the rest.
// Bounded: `queue_steps` steps may wait; with more, Back() is null and the engine does not step until there
// is room (`engine_wake` is notified). Readers are never waited for, so room comes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "engine/output/output_metrics.h"
#include "engine/output/request_output.h"
#include "engine/request/limits.h"
#include "engine/request/request.h"
#include "engine/threads/signal.h"
#include "engine/threads/spsc_ring.h"

namespace tramontane {

// Why a choice gets no more tokens, as the engine sees it.
struct ChoiceEnd {
  FinishReason reason = FinishReason::kStop;
  Status status = {};          // what becomes of the request if this is the worst end of its choices
  int32_t stop_token_id = -1;  // the token (the last one sent) that ended it
};

// What one step did to one choice.
struct ChoiceOutput {
  std::shared_ptr<RequestOutput> request;
  int32_t choice = 0;
  std::unique_ptr<StreamStarted> started;  // in the request's first: rare, and so not in every output
  std::optional<TokenInfo> token;
  std::optional<ChoiceEnd> end;  // after `token`
  Usage usage;                   // as of now; completion_tokens is counted by the output thread
  Timings timings;               // as of now; finished_ns is the time of this step
};

using StepOutput = std::vector<ChoiceOutput>;

class OutputProcessor {
 public:
  // `on_done` is called on the output thread just before a request's stream is done.
  OutputProcessor(const EngineLimits& limits, Signal& engine_wake, std::function<void()> on_done);
  ~OutputProcessor();  // after everything pushed is delivered

  // The empty output of the next step, to be filled; null when the queue is full.
  StepOutput* Back() { return ring_.Back(); }
  void Push() {
    ring_.Push();
    wake_.Notify();
  }

  const OutputMetrics& metrics() const { return metrics_; }  // any thread

 private:
  void Run();
  void Deliver(ChoiceOutput& output);
  // The stop string that the token completes, or null.
  const std::string* DeliverToken(ChoiceOutput& output, ChoiceText& text);
  void FinishChoice(const ChoiceOutput& output, ChoiceText& text, const std::string* stop);
  // A choice that ends without a token still shows what was held back.
  void FlushHeldText(const ChoiceOutput& output, ChoiceText& text);
  // What is wrong where its reader is too far behind, alone or together with others; "": it is not.
  std::string UnreadFault(const Unread& unread, int32_t choice) const;

  const int64_t most_unread_tokens_;
  const int64_t most_unread_bytes_;
  Signal& engine_wake_;
  const std::function<void()> on_done_;
  OutputMetrics metrics_;
  SpscRing<StepOutput> ring_;
  Signal wake_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tramontane
