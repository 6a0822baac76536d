// LongestPrefixHit: how much of a prompt need not be computed again, given which of its pages are known.
// The one place that states the rule. Any thread; pure.
//
//   page 4, prompt 18, window 6:   a hit of 16 computes 16 and 17; the query at 16 sees 11..16
//
//   no window   |0..3|4..7|8..11|12..15|     every page of [0, 16)
//   window 6              |8..11|12..15|     those that meet [11, 16)
//
// A hit ends at a page border below the prompt's end (so at least one token is computed), and every group
// must be able to go on from there: it needs the pages that the first computed query sees, and those of the
// first positions where it keeps them in sight. Under a context policy that query may see less than windows
// say: then `left` tells from where on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/names/paging.h"
#include "kernels/paged_kv.h"

namespace tramontane {

// What of a layer group decides which pages it needs.
struct PrefixGroup {
  int32_t window = 0;  // keys a query sees, itself included; 0: all
  int64_t n_keep = 0;  // first positions that stay in sight, whatever the window
};

// The first position that a query sees which sees nothing in front of `left`, but for kept first positions.
constexpr int64_t FirstSeen(int64_t position, int32_t window, int64_t left) {
  return std::max(FirstVisible(position, window), left);
}

// Tokens of the longest hit: whole pages, below prompt_tokens, 0 where there is none.
// `known(group, page)`: whether the page is known in that group; asked in order of pages. `left(position)`:
// the row there sees nothing in front of it but the first n_keep positions; never less for a later row.
template <typename Known, typename Left>
int64_t LongestPrefixHit(int64_t prompt_tokens, Paging paging, std::span<const PrefixGroup> groups,
                         const Known& known, const Left& left) {
  struct Run {
    int64_t begin = 0;  // the pages from here up to the last one asked for are known
    int64_t kept = 0;   // the pages [0, kept) are known
  };
  std::vector<Run> runs(groups.size());
  int64_t hit = 0;
  const int64_t pages = paging.PageOf(std::max<int64_t>(prompt_tokens - 1, 0));
  for (int64_t page = 0; page < pages; ++page) {
    const int64_t end = paging.BeginOf(page + 1);
    const int64_t left_at_end = left(end);
    bool suffices = true;
    for (size_t g = 0; g < groups.size(); ++g) {
      const bool is_known = known(g, page);
      if (!is_known) runs[g].begin = page + 1;
      if (is_known && runs[g].kept == page) ++runs[g].kept;
      const int64_t first_seen = paging.PageOf(FirstSeen(end, groups[g].window, left_at_end));
      const int64_t sinks = paging.PagesFor(std::min(groups[g].n_keep, end));
      suffices = suffices && runs[g].begin <= first_seen && runs[g].kept >= sinks;
    }
    if (suffices) hit = end;
  }
  return hit;
}

}  // namespace tramontane
