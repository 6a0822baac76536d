// EvictionQueues: the cached pages of a pool, in the order in which they are evicted.
// Engine thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/kv/names/prefix_tree.h"
#include "kernels/core/check.h"

namespace tramontane {

// In this order, and those of one rank in the order in which they were added.
enum class EvictionRank : int32_t {
  kUseless,    // no hit can use the page: a group that sees as far lacks its page there
  kPassed,     // it left a window in the middle of a text, where a hit is unlikely to end
  kOthers,     // the ends of prompts, of hits and of answers among them, and where texts part (EndsNear)
  kPreferred,  // of these what a lease has had that prefers them (Lease::prefers_cache); in front of the
               // others while more than half of the pool are such
  kSetAside,   // of a sequence that comes back (KvStore::SetAside)
};

class EvictionQueues {
 public:
  explicit EvictionQueues(int64_t pages) : links_(static_cast<size_t>(pages)) {}

  int64_t pages() const { return pages_; }
  void Add(PageId page, EvictionRank rank) {
    Ends& ends = ends_[static_cast<size_t>(rank)];
    link(page) = {.rank = rank, .older = ends.newest};
    (ends.newest == kNoPage ? ends.oldest : link(ends.newest).newer) = page;
    ends.newest = page;
    ++pages_;
    if (rank == EvictionRank::kPreferred) ++preferred_pages_;
  }
  void Remove(PageId page) {
    const auto [rank, older, newer] = link(page);
    Ends& ends = ends_[static_cast<size_t>(rank)];
    (older == kNoPage ? ends.oldest : link(older).newer) = newer;
    (newer == kNoPage ? ends.newest : link(newer).older) = older;
    --pages_;
    if (rank == EvictionRank::kPreferred) --preferred_pages_;
  }
  PageId Next() const {  // kNoPage: there is none
    using enum EvictionRank;
    constexpr std::array usual = {kUseless, kPassed, kOthers, kPreferred, kSetAside};
    constexpr std::array crowded = {kUseless, kPassed, kPreferred, kOthers, kSetAside};
    const bool is_crowded = 2 * preferred_pages_ > static_cast<int64_t>(links_.size());
    for (const EvictionRank rank : is_crowded ? crowded : usual) {
      const PageId oldest = ends_[static_cast<size_t>(rank)].oldest;
      if (oldest != kNoPage) return oldest;
    }
    return kNoPage;
  }
  EvictionRank rank(PageId page) const { return links_[static_cast<size_t>(page)].rank; }
  // All of them, in order. Aborts when an invariant is broken.
  std::vector<PageId> CheckedList() const {
    std::vector<PageId> list;
    int64_t preferred = 0;
    for (const Ends& ends : ends_) {
      PageId older = kNoPage;
      for (PageId page = ends.oldest; page != kNoPage; page = links_[static_cast<size_t>(page)].newer) {
        TM_CHECK(links_[static_cast<size_t>(page)].older == older,
                 "page %d does not know the one in front of it", page);
        if (rank(page) == EvictionRank::kPreferred) ++preferred;
        list.push_back(page);
        older = page;
      }
      TM_CHECK(ends.newest == older, "page %d is not the newest", ends.newest);
    }
    TM_CHECK(std::ssize(list) == pages_ && preferred == preferred_pages_,
             "%zu pages are cached, %lld preferred: not as counted", list.size(),
             static_cast<long long>(preferred));
    return list;
  }

 private:
  struct Link {
    EvictionRank rank = EvictionRank::kOthers;
    PageId older = kNoPage;
    PageId newer = kNoPage;
  };
  struct Ends {
    PageId oldest = kNoPage;
    PageId newest = kNoPage;
  };
  Link& link(PageId page) { return links_[static_cast<size_t>(page)]; }

  std::vector<Link> links_;   // [pages of the pool]
  std::array<Ends, 5> ends_;  // [ranks]
  int64_t pages_ = 0;
  int64_t preferred_pages_ = 0;
};

}  // namespace tramontane
