// Histogram: numbers by size, for /metrics. One thread observes, any reads.
// Always: no lock and no read-modify-write; an observation costs one search among some twenty bounds and two
// plain stores. A reader may see one in the counts and not yet in the sum, never anything else.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tramontane {

// To a counter with one writer: cheaper than fetch_add.
template <typename T>
void AddAlone(std::atomic<T>& counter, T amount) {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

class Histogram {
 public:
  // `bounds`: ascending, inclusive.
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

  void Observe(double value) {
    const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
    AddAlone(counts_[static_cast<size_t>(bucket)], int64_t{1});
    AddAlone(sum_, value);
  }
  // A duration, in seconds.
  void ObserveNs(int64_t duration_ns) { Observe(static_cast<double>(duration_ns) / 1e9); }

  const std::vector<double>& bounds() const { return bounds_; }
  // [bounds + 1], not cumulative; the last is of what is above all bounds.
  std::vector<int64_t> Counts() const {
    std::vector<int64_t> counts;
    counts.reserve(counts_.size());
    for (const std::atomic<int64_t>& count : counts_) counts.push_back(count.load(std::memory_order_relaxed));
    return counts;
  }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  const std::vector<double> bounds_;
  std::vector<std::atomic<int64_t>> counts_;
  std::atomic<double> sum_{0.0};
};

// 1, 2, 5, 10, 20, .. up to `most`.
inline std::vector<double> OneTwoFive(int64_t most) {
  std::vector<double> bounds;
  for (int64_t ten = 1; ten <= most; ten *= 10) {
    for (const int64_t part : {1, 2, 5}) {
      if (part * ten <= most) bounds.push_back(static_cast<double>(part * ten));
    }
  }
  return bounds;
}

}  // namespace tramontane
