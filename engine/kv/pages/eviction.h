// EvictionQueues: the cached pages of a pool, in the order in which they are evicted.
// Engine thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/kv/names/prefix_tree.h"

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
  void Add(PageId page, EvictionRank rank);
  void Remove(PageId page);
  PageId Next() const;  // kNoPage: there is none
  EvictionRank rank(PageId page) const { return links_[static_cast<size_t>(page)].rank; }
  // All of them, in order. Aborts when an invariant is broken.
  std::vector<PageId> CheckedList() const;

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
