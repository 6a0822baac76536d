#include "models/kv_layout.h"

#include <algorithm>
#include <tuple>

#include "kernels/core/check.h"

namespace tramontane {
namespace {

// Layers of each distinct window, in the order in which the windows first appear.
std::vector<KvGroupSpec> WindowClasses(const std::vector<int32_t>& windows) {
  std::vector<KvGroupSpec> classes;
  for (int32_t layer = 0; layer < static_cast<int32_t>(windows.size()); ++layer) {
    auto same = std::find_if(classes.begin(), classes.end(),
                             [&](const KvGroupSpec& c) { return c.window == windows[layer]; });
    if (same == classes.end()) same = classes.insert(classes.end(), KvGroupSpec{windows[layer], {}});
    same->layers.push_back(layer);
  }
  return classes;
}

// The count with the least padding, among those the one with the fewest groups.
int32_t ChooseLayersPerPage(const std::vector<KvGroupSpec>& classes) {
  int32_t largest = 0;
  for (const KvGroupSpec& c : classes) largest = std::max(largest, static_cast<int32_t>(c.layers.size()));
  std::tuple<int32_t, int32_t> best{};  // padded layers of all groups and the real ones, groups
  int32_t chosen = 0;
  for (int32_t count = 1; count <= largest; ++count) {
    int32_t groups = 0;
    for (const KvGroupSpec& c : classes)
      groups += (static_cast<int32_t>(c.layers.size()) + count - 1) / count;
    if (groups > kMaxKvGroups) continue;
    const std::tuple<int32_t, int32_t> cost = {groups * count, groups};
    if (chosen == 0 || cost < best) {
      best = cost;
      chosen = count;
    }
  }
  return chosen;
}

}  // namespace

KvLayout MakeKvLayout(const std::vector<int32_t>& windows, const KvFormat& format) {
  const std::vector<KvGroupSpec> classes = WindowClasses(windows);
  TM_CHECK(!classes.empty() && classes.size() <= kMaxKvGroups, "%zu different windows, the limit is %d",
           classes.size(), kMaxKvGroups);
  KvLayout layout;
  layout.format = format;
  layout.layers_per_page = ChooseLayersPerPage(classes);
  layout.places.resize(windows.size());
  for (const KvGroupSpec& c : classes) {
    for (size_t i = 0; i < c.layers.size(); ++i) {
      const auto layer_in_group = static_cast<int32_t>(i) % layout.layers_per_page;
      if (layer_in_group == 0) layout.groups.push_back({c.window, {}});
      layout.groups.back().layers.push_back(c.layers[i]);
      layout.places[c.layers[i]] = {static_cast<int32_t>(layout.groups.size()) - 1, layer_in_group};
    }
  }
  return layout;
}

int64_t KvLayout::PagesForGroup(int32_t group, int64_t tokens, int64_t chunk) const {
  const int64_t all = PagesFor(tokens, format.page_size);
  const int32_t window = groups[group].window;
  if (window == 0) return all;
  return std::min(all, PagesFor(int64_t{window} - 1 + chunk, format.page_size) + 1);
}

int64_t KvLayout::PagesForSequence(int64_t tokens, int64_t chunk) const {
  int64_t pages = 0;
  for (int32_t group = 0; group < static_cast<int32_t>(groups.size()); ++group) {
    pages += PagesForGroup(group, tokens, chunk);
  }
  return pages;
}

int64_t LeastChunk(const KvLayout& layout, int64_t max_step_tokens) {
  return std::min<int64_t>(layout.format.page_size, max_step_tokens);
}

// Pages grow with tokens, so halving finds it.
int64_t ContextThatFits(const KvLayout& layout, int64_t pool_pages, int64_t max_step_tokens) {
  const int64_t ahead = LeastChunk(layout, max_step_tokens);
  int64_t fits = 0;
  int64_t too_many = kMaxContext + 1;
  while (too_many - fits > 1) {
    const int64_t tokens = fits + (too_many - fits) / 2;
    (layout.PagesForSequence(tokens, ahead) <= pool_pages ? fits : too_many) = tokens;
  }
  return fits;
}

}  // namespace tramontane
