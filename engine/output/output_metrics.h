// OutputMetrics: latencies and ends of choices, counted where the output thread delivers them, for /metrics.
//
// Threads: On* from the output thread only; the rest from any. The engine thread touches nothing here.
// Always: no lock and no read-modify-write; a token costs the output thread one search among some twenty
// bounds and two plain stores. A reader may see a token in the counts and not yet in the sum, never anything
// else.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "engine/request/request.h"

namespace tramontane {

// Durations by size. One thread observes.
class LatencyHistogram {
 public:
  explicit LatencyHistogram(std::vector<double> bounds_seconds);  // ascending, inclusive

  void Observe(int64_t duration_ns);

  const std::vector<double>& bounds_seconds() const { return bounds_; }
  std::vector<int64_t> Counts()
      const;  // [bounds + 1], not cumulative; the last is of what is above all bounds
  double sum_seconds() const { return sum_.load(std::memory_order_relaxed); }

 private:
  const std::vector<double> bounds_;
  std::vector<std::atomic<int64_t>> counts_;
  std::atomic<double> sum_{0.0};
};

class OutputMetrics {
 public:
  OutputMetrics();

  // A choice's token was delivered. `last_token_ns`: when its token before this one was computed; 0: it is
  // the first.
  void OnToken(const Timings& timings, int64_t token_ns, int64_t last_token_ns);
  void OnFinished(FinishReason reason);

  // Of each choice: from the request's receipt to its first token, and from each token to the next.
  const LatencyHistogram& time_to_first_token() const { return time_to_first_token_; }
  const LatencyHistogram& inter_token_latency() const { return inter_token_latency_; }
  int64_t finished_choices(FinishReason reason) const {
    return finished_[static_cast<size_t>(reason)].load(std::memory_order_relaxed);
  }

 private:
  LatencyHistogram time_to_first_token_;
  LatencyHistogram inter_token_latency_;
  std::array<std::atomic<int64_t>, kFinishReasons> finished_{};
};

}  // namespace tramontane
