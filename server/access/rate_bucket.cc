#include "server/access/rate_bucket.h"

#include <algorithm>
#include <cmath>

namespace tramontane {
namespace {

constexpr int64_t kMinuteNs = 60'000'000'000;
constexpr int64_t kMostDebtNs = 24 * 60 * kMinuteNs;  // that is remembered

int64_t CostNs(int64_t amount, int64_t per_minute) {
  const double cost_ns =
      static_cast<double>(amount) * static_cast<double>(kMinuteNs) / static_cast<double>(per_minute);
  return static_cast<int64_t>(std::min(cost_ns, static_cast<double>(kMostDebtNs)));
}

}  // namespace

void RateBucket::SetBound(int64_t per_minute, int64_t now_ns) {
  const int64_t before = per_minute_.exchange(per_minute);
  if (before == per_minute) return;
  const double ratio = per_minute == 0 ? 0 : static_cast<double>(before) / static_cast<double>(per_minute);
  const double used_ns = static_cast<double>(UsedNs(now_ns)) * ratio;
  full_at_ns_ = now_ns + static_cast<int64_t>(std::min(used_ns, static_cast<double>(kMostDebtNs)));
}

int64_t RateBucket::UsedNs(int64_t now_ns) const { return std::max<int64_t>(0, full_at_ns_ - now_ns); }

int64_t RateBucket::Left(int64_t now_ns) const {
  const double left_ns = static_cast<double>(kMinuteNs - UsedNs(now_ns));
  return static_cast<int64_t>(
      std::floor(left_ns * static_cast<double>(per_minute()) / static_cast<double>(kMinuteNs)));
}

bool RateBucket::IsBelowZero(int64_t now_ns) const { return per_minute() > 0 && UsedNs(now_ns) > kMinuteNs; }

int64_t RateBucket::NsUntil(int64_t left, int64_t now_ns) const {
  const int64_t bound = per_minute();
  return bound == 0 ? 0 : std::max<int64_t>(0, UsedNs(now_ns) - (kMinuteNs - CostNs(left, bound)));
}

bool RateBucket::TryTake(int64_t now_ns) {
  const int64_t bound = per_minute();
  if (bound == 0) return true;
  const int64_t cost_ns = CostNs(1, bound);
  int64_t full_at_ns = full_at_ns_;
  int64_t taken_ns = 0;
  do {
    taken_ns = std::max(full_at_ns, now_ns) + cost_ns;
    if (taken_ns - now_ns > kMinuteNs) return false;
  } while (!full_at_ns_.compare_exchange_weak(full_at_ns, taken_ns));
  return true;
}

void RateBucket::Take(int64_t amount, int64_t now_ns) {
  const int64_t bound = per_minute();
  if (bound == 0) return;
  const int64_t cost_ns = CostNs(amount, bound);
  int64_t full_at_ns = full_at_ns_;
  while (!full_at_ns_.compare_exchange_weak(
      full_at_ns, std::min(std::max(full_at_ns, now_ns) + cost_ns, now_ns + kMostDebtNs))) {
  }
}

}  // namespace tramontane
