#include "engine/output/output_metrics.h"

#include <algorithm>
#include <utility>

namespace tramontane {
namespace {

// For counters with one writer: cheaper than fetch_add.
template <typename T>
void Add(std::atomic<T>& counter, T amount) {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

// The bounds that dashboards made for vLLM know.
std::vector<double> FirstTokenBounds() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
          1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
}

std::vector<double> InterTokenBounds() {
  return {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
}

}  // namespace

LatencyHistogram::LatencyHistogram(std::vector<double> bounds_seconds)
    : bounds_(std::move(bounds_seconds)), counts_(bounds_.size() + 1) {}

void LatencyHistogram::Observe(int64_t duration_ns) {
  const double seconds = static_cast<double>(duration_ns) / 1e9;
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), seconds) - bounds_.begin();
  Add(counts_[static_cast<size_t>(bucket)], int64_t{1});
  Add(sum_, seconds);
}

std::vector<int64_t> LatencyHistogram::Counts() const {
  std::vector<int64_t> counts;
  for (const std::atomic<int64_t>& count : counts_) counts.push_back(count.load(std::memory_order_relaxed));
  return counts;
}

OutputMetrics::OutputMetrics()
    : time_to_first_token_(FirstTokenBounds()), inter_token_latency_(InterTokenBounds()) {}

void OutputMetrics::OnToken(const Timings& timings, int64_t token_ns, int64_t last_token_ns) {
  if (last_token_ns == 0) {
    time_to_first_token_.Observe(token_ns - timings.received_ns);
  } else {
    inter_token_latency_.Observe(token_ns - last_token_ns);
  }
}

void OutputMetrics::OnFinished(FinishReason reason) {
  Add(finished_[static_cast<size_t>(reason)], int64_t{1});
}

}  // namespace tramontane
