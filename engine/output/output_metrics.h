// OutputMetrics: latencies and ends of choices, counted where the output thread delivers them, for /metrics.
//
// Threads: On* from the output thread only; the rest from any. The engine thread touches nothing here.
// Always: no lock and no read-modify-write; a token costs the output thread one search among some twenty
// bounds and two plain stores. A reader may see a token in the counts and not yet in the sum, never anything
// else.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/request/request.h"

namespace tramontane {

// To a counter with one writer: cheaper than fetch_add.
template <typename T>
void AddAlone(std::atomic<T>& counter, T amount) {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

// Durations by size. One thread observes.
class LatencyHistogram {
 public:
  // `bounds_seconds`: ascending, inclusive.
  explicit LatencyHistogram(std::vector<double> bounds_seconds)
      : bounds_(std::move(bounds_seconds)), counts_(bounds_.size() + 1) {}

  void Observe(int64_t duration_ns) {
    const double seconds = static_cast<double>(duration_ns) / 1e9;
    const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), seconds) - bounds_.begin();
    AddAlone(counts_[static_cast<size_t>(bucket)], int64_t{1});
    AddAlone(sum_, seconds);
  }

  const std::vector<double>& bounds_seconds() const { return bounds_; }
  // [bounds + 1], not cumulative; the last is of what is above all bounds.
  std::vector<int64_t> Counts() const {
    std::vector<int64_t> counts;
    for (const std::atomic<int64_t>& count : counts_) counts.push_back(count.load(std::memory_order_relaxed));
    return counts;
  }
  double sum_seconds() const { return sum_.load(std::memory_order_relaxed); }

 private:
  const std::vector<double> bounds_;
  std::vector<std::atomic<int64_t>> counts_;
  std::atomic<double> sum_{0.0};
};

class OutputMetrics {
 public:
  // A choice's token was delivered. `last_token_ns`: when its token before this one was computed; 0: it is
  // the first.
  void OnToken(const Timings& timings, int64_t token_ns, int64_t last_token_ns) {
    if (last_token_ns == 0) {
      time_to_first_token_.Observe(token_ns - timings.received_ns);
    } else {
      inter_token_latency_.Observe(token_ns - last_token_ns);
    }
  }
  void OnFinished(FinishReason reason) { AddAlone(finished_[static_cast<size_t>(reason)], int64_t{1}); }

  // Of each choice: from the request's receipt to its first token, and from each token to the next.
  const LatencyHistogram& time_to_first_token() const { return time_to_first_token_; }
  const LatencyHistogram& inter_token_latency() const { return inter_token_latency_; }
  int64_t finished_choices(FinishReason reason) const {
    return finished_[static_cast<size_t>(reason)].load(std::memory_order_relaxed);
  }

 private:
  // The bounds that dashboards made for vLLM know.
  LatencyHistogram time_to_first_token_{{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                         1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560}};
  LatencyHistogram inter_token_latency_{
      {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}};
  std::array<std::atomic<int64_t>, kFinishReasons> finished_{};
};

}  // namespace tramontane
