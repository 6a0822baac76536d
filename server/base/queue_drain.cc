#include "server/base/queue_drain.h"

#include <algorithm>

namespace tramontane {
namespace {

constexpr double kFirstGapNs = 500e6;  // what is believed of a queue that nobody has left yet
constexpr double kMemoryNs = 10e9;     // of busy time; what was before that counts half
constexpr double kMostNs = 60e9;

}  // namespace

void QueueDrain::Came(int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  Advance(now_ns);
  ++waiting_;
}

void QueueDrain::Left(int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  Advance(now_ns);
  --waiting_;
  ++left_;
}

int64_t QueueDrain::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_;
}

int64_t QueueDrain::TellNextNs(int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  Advance(now_ns);
  const double gap_ns = (busy_ns_ + kFirstGapNs) / (left_ + 1);
  const double all_ns = gap_ns * static_cast<double>(std::max<int64_t>(1, waiting_));
  const double next_ns = gap_ns + static_cast<double>(std::max<int64_t>(0, told_ns_ - now_ns));
  const auto told_ns = static_cast<int64_t>(std::min({next_ns, all_ns, kMostNs}));
  told_ns_ = now_ns + std::max<int64_t>(1, told_ns);
  return told_ns_ - now_ns;
}

// Time in which nothing waits says nothing of how fast the queue could empty.
void QueueDrain::Advance(int64_t now_ns) {
  if (waiting_ > 0) busy_ns_ += static_cast<double>(std::max<int64_t>(0, now_ns - at_ns_));
  at_ns_ = now_ns;
  while (busy_ns_ > kMemoryNs) {
    busy_ns_ /= 2;
    left_ /= 2;
  }
}

}  // namespace tramontane
