// Which layers share a page table: layers with the same window form a KvGroup.
//
// One pool of equal pages serves all groups. Where window classes have different layer counts, a class is
// split into several groups of as many layers as the smallest class has (9 full + 27 windowed layers: 1 + 3
// groups of 9). Where the counts do not divide, the last group of a class is padded; if that would make too
// many groups (more than kMaxKvGroups) larger groups with more padding are taken.
//
// Any thread; a plain value. Always: every layer is in exactly one group.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/paged_kv.h"

namespace tramontane {

inline constexpr int32_t kMaxKvGroups = 16;

struct KvGroupSpec {
  int32_t window = 0;           // keys a query sees, itself included; 0: all
  std::vector<int32_t> layers;  // model layers, in order; index here = layer index within a page
};

struct KvLayout {
  KvFormat format;
  int32_t layers_per_page = 0;  // of every group, padding included
  std::vector<KvGroupSpec> groups;

  struct Place {
    int32_t group = 0;
    int32_t layer_in_group = 0;
  };
  std::vector<Place> places;  // [model layers]

  int64_t page_bytes() const { return format.PageBytes(layers_per_page); }
  // Pages one sequence of `tokens` tokens holds over all groups, when up to `chunk` tokens (of all steps in
  // flight together) may be written ahead of the window.
  int64_t PagesForSequence(int64_t tokens, int64_t chunk) const;
};

// windows: [layers], 0 for none.
KvLayout MakeKvLayout(const std::vector<int32_t>& windows, const KvFormat& format);

}  // namespace tramontane
