// OutputMetrics: latencies, lengths and ends of choices, counted where the output thread delivers them, for
// /metrics.
//
// Threads: On* from the output thread only; the rest from any. The engine thread touches nothing here.
// Always: no lock (histogram.h), and what is counted is so before its reader is told.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <vector>

#include "engine/output/histogram.h"
#include "engine/request/request.h"

namespace tramontane {

// Prompts by length, and the words for that.
inline constexpr std::array<const char*, 4> kPromptLengths = {"le128", "le1k", "le8k", "gt8k"};
inline size_t PromptLengthOf(int64_t tokens) {
  return static_cast<size_t>(tokens > 128) + static_cast<size_t>(tokens > 1024) +
         static_cast<size_t>(tokens > 8192);
}

// The bounds of the stages of a first token (docs/ttft.md), in seconds.
inline std::vector<double> StageBounds() {
  return {.0001, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 120};
}

class OutputMetrics {
 public:
  // receive, parse, tokenize, queue, prefill_run, prefill_wait, sample: those that end with the first token.
  static constexpr size_t kStages = 7;
  // What of a request is told once for each of its choices.
  struct ChoiceTimes {
    // The bounds that dashboards made for vLLM know, and finer ones below: these sum over `le`.
    static std::vector<double> Bounds() {
      return {.001, .005, .01, .05, .1, .3, .5, .8,  1,   1.5, 2,   2.5,  5,
              10,   15,   20,  30,  40, 50, 60, 120, 240, 480, 960, 1920, 7680};
    }
    Histogram e2e{Bounds()}, queue{Bounds()}, prefill{Bounds()}, decode{Bounds()}, inference{Bounds()};
    Histogram per_output_token{TokenBounds()};
  };
  // And of its lengths, in tokens; `n` in choices.
  struct Lengths {
    explicit Lengths(int64_t context) : context(context) {}
    const int64_t context;
    Histogram prompt{OneTwoFive(context)}, prompt_computed{OneTwoFive(context)},
        max_tokens{OneTwoFive(context)}, generation{OneTwoFive(context)}, max_generation{OneTwoFive(context)};
    Histogram n{{1, 2, 5, 10, 20}};
  };

  // `context`: the most tokens that a text has.
  explicit OutputMetrics(int64_t context) : lengths_(context) {
    for (size_t i = 0; i < kPromptLengths.size() * kStages; ++i) stages_.emplace_back(StageBounds());
  }

  // A choice's token was delivered. `last_token_ns`: when its token before this one was computed; 0: it is
  // the first.
  void OnToken(const Request& request, int32_t choice, const Timings& timings, int64_t token_ns,
               int64_t last_token_ns) {
    AddAlone(tokens_, int64_t{1});
    if (request.counted != nullptr) request.counted->generation.fetch_add(1, std::memory_order_relaxed);
    if (last_token_ns != 0) return inter_token_latency_.ObserveNs(token_ns - last_token_ns);
    time_to_first_token_.ObserveNs(token_ns - request.arrival.begun_ns);
    if (choice == 0) ObserveStages(request, timings, token_ns);
  }
  // `last_token_ns`: of its last token; 0: it had none.
  void OnChoiceFinished(FinishReason reason, const Request& request, const Timings& timings,
                        int64_t last_token_ns, int64_t tokens) {
    AddAlone(finished_[static_cast<size_t>(reason)], int64_t{1});
    if (!EndsWell(reason)) return;
    lengths_.generation.Observe(static_cast<double>(tokens));
    times_.e2e.ObserveNs(timings.finished_ns - request.arrival.begun_ns);
    if (timings.first_chunk_ns == 0) return;
    times_.queue.ObserveNs(timings.first_chunk_ns - request.tokenized_ns);
    if (timings.first_token_ns == 0) return;
    times_.prefill.ObserveNs(timings.first_token_ns - timings.first_chunk_ns);
    times_.decode.ObserveNs(last_token_ns - timings.first_token_ns);
    times_.inference.ObserveNs(last_token_ns - timings.first_chunk_ns);
    if (tokens > 1)
      times_.per_output_token.ObserveNs((last_token_ns - timings.first_token_ns) / (tokens - 1));
  }
  // All its choices have, and the last one well. `most_tokens`: of a choice.
  void OnRequestFinished(const Request& request, const Usage& usage, int64_t most_tokens) {
    lengths_.prompt.Observe(static_cast<double>(usage.prompt_tokens));
    lengths_.prompt_computed.Observe(static_cast<double>(usage.prompt_tokens - usage.cached_tokens));
    if (request.stopping.max_tokens)
      lengths_.max_tokens.Observe(static_cast<double>(*request.stopping.max_tokens));
    lengths_.max_generation.Observe(static_cast<double>(most_tokens));
    lengths_.n.Observe(request.choices);
  }

  // Whether it ended by itself: times and lengths are those of such choices.
  static bool EndsWell(FinishReason reason) {
    return reason != FinishReason::kCancelled && reason != FinishReason::kError;
  }

  // Of each choice: from the request's first byte to its first token, and from each token to the next.
  const Histogram& time_to_first_token() const { return time_to_first_token_; }
  const Histogram& inter_token_latency() const { return inter_token_latency_; }
  const ChoiceTimes& times() const { return times_; }
  const Lengths& lengths() const { return lengths_; }
  // Of first choices: where the time to their first token went. They sum to it.
  const Histogram& stage(size_t stage, size_t prompt_length) const {
    return stages_[prompt_length * kStages + stage];
  }
  int64_t tokens() const { return tokens_.load(std::memory_order_relaxed); }  // delivered
  int64_t finished_choices(FinishReason reason) const {
    return finished_[static_cast<size_t>(reason)].load(std::memory_order_relaxed);
  }

 private:
  static std::vector<double> TokenBounds() {
    return {.001, .002, .003, .005, .0075, .01, .025, .05, .075, .1, .15, .2,
            .3,   .4,   .5,   .75,  1,     2.5, 5,    7.5, 10,   20, 40,  80};
  }

  // As TtftStages has them: each begins where the one before it ends.
  void ObserveStages(const Request& request, const Timings& timings, int64_t token_ns) {
    const ArrivalTimes& arrival = request.arrival;
    int64_t begin_ns = arrival.begun_ns;
    size_t stage = PromptLengthOf(std::ssize(request.prompt)) * kStages;
    for (const int64_t end_ns :
         {arrival.begun_ns + arrival.receive_ns, arrival.begun_ns + arrival.receive_ns + arrival.parse_ns,
          request.tokenized_ns, timings.first_chunk_ns, timings.first_chunk_ns + timings.prefill_run_ns,
          timings.prefilled_ns, token_ns}) {
      stages_[stage++].ObserveNs(std::max(end_ns, begin_ns) - begin_ns);
      begin_ns = std::max(end_ns, begin_ns);
    }
  }

  Histogram time_to_first_token_{{.0005, .001, .002, .005, .01, .02, .04, .06, .08, .1, .15, .2,  .25, .3,
                                  .5,    .75,  1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560}};
  Histogram inter_token_latency_{TokenBounds()};
  ChoiceTimes times_;
  Lengths lengths_;
  std::deque<Histogram> stages_;  // [prompt lengths, kStages]
  std::atomic<int64_t> tokens_{0};
  std::array<std::atomic<int64_t>, kFinishReasons> finished_{};
};

}  // namespace tramontane
