// Which layers share a page table: layers with the same window form a KvGroup.
//
// One pool of equal pages serves all groups, so every group has the same number of layers per page. Where
// window classes have different layer counts, a class is split into several groups (9 full + 27 windowed
// layers: 1 + 3 groups of 9), and where the counts do not divide, the last group of a class is padded. Layers
// per page are chosen for the least padding, then for the fewest groups, and never make more than
// kMaxKvGroups:
//
//   layers full + windowed    9 + 27    4 + 6    9 + 10        1 + 31
//   layers per page                9        2        10             4
//   groups                     1 + 3    2 + 3     1 + 1         1 + 8
//   padded layers                  0        0         1         3 + 1
//
// Any thread; a plain value. Always: every layer is in exactly one group.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/paged_kv.h"

namespace tramontane {

inline constexpr int32_t kMaxKvGroups = 16;
inline constexpr int32_t kMaxPageSize = 1 << 10;  // tokens
// Positions of a context are below this, those of any text below kMaxEndlessText: page tables on a device
// hold them in 32 bits, and a prompt's cost fits 64 bits.
inline constexpr int64_t kMaxContext = int64_t{1} << 26;
// Of a text under a context policy: a prompt and an output of as many each.
inline constexpr int64_t kMaxEndlessText = 2 * kMaxContext;

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
  // What one token costs in any group.
  int64_t token_bytes() const { return layers_per_page * format.TokenBytes(); }
  // Pages that one sequence of `tokens` tokens may hold in one group, when up to `chunk` tokens (of all steps
  // in flight together) may be written ahead of the window: with a window never more than ceil((W - 1 +
  // chunk) / page) + 1.
  int64_t PagesForGroup(int32_t group, int64_t tokens, int64_t chunk) const;
  // The same over all groups.
  int64_t PagesForSequence(int64_t tokens, int64_t chunk) const;
  // Where layer `layer_in_group` lies in every page of `pool`.
  KvLayerView LayerView(std::byte* pool, int32_t layer_in_group) const {
    return KvLayerView(format, pool, page_bytes(), layer_in_group * format.LayerBytes());
  }
};

// windows: [layers], 0 for none; at most kMaxKvGroups different ones.
KvLayout MakeKvLayout(const std::vector<int32_t>& windows, const KvFormat& format);

// Tokens written ahead of the window by a sequence that is alone and short of pages: a chunk of one page, or
// the largest step where that is less. Chunks shrink to this and no further.
int64_t LeastChunk(const KvLayout& layout, int64_t max_step_tokens);

// The largest context one sequence can reach when it has the whole pool: windowed groups at their bound with
// the least chunk. At most kMaxContext; 0 when the pool holds nothing.
int64_t ContextThatFits(const KvLayout& layout, int64_t pool_pages, int64_t max_step_tokens);

}  // namespace tramontane
