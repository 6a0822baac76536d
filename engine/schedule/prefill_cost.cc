#include "engine/schedule/prefill_cost.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

// Sum of (position + 1) over [begin, end).
int64_t SumOfLengths(int64_t begin, int64_t end) { return (end * (end + 1) - begin * (begin + 1)) / 2; }

// Sum of min(position + 1, window) over [begin, end).
int64_t KeysWithin(int64_t begin, int64_t end, int64_t window) {
  const int64_t full = std::clamp<int64_t>(window, begin, end);  // from here on the window is full
  return SumOfLengths(begin, full) + (end - full) * window;
}

}  // namespace

PrefillCost::PrefillCost(const KvLayout& layout, int64_t attended_keys_per_token) {
  int64_t layers = 0;
  for (const KvGroupSpec& group : layout.groups) {
    auto same = std::find_if(classes_.begin(), classes_.end(),
                             [&](const WindowClass& c) { return c.window == group.window; });
    if (same == classes_.end()) same = classes_.insert(classes_.end(), {group.window, 0});
    same->layers += static_cast<int64_t>(group.layers.size());
    layers += static_cast<int64_t>(group.layers.size());
  }
  TM_CHECK(layers > 0 && attended_keys_per_token > 0, "a layout of %lld layers",
           static_cast<long long>(layers));
  parts_per_token_ = attended_keys_per_token * layers;
}

int64_t PrefillCost::Parts(int64_t begin, int64_t end, int64_t most_keys) const {
  return (end - begin) * parts_per_token_ + AttendedKeys(begin, end, most_keys);
}

int64_t PrefillCost::AttendedKeys(int64_t begin, int64_t end, int64_t most_keys) const {
  int64_t keys = 0;
  for (const WindowClass& c : classes_) {
    const int64_t window = c.window == 0 ? most_keys : std::min<int64_t>(c.window, most_keys);
    keys += c.layers * KeysWithin(begin, end, window);
  }
  return keys;
}

}  // namespace tramontane
