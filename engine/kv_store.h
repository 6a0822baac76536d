// KvStore: the one owner of the KV pool's pages, and of who has them. Paged and rolling.
// Engine thread only.
//
// A Lease is what a sequence holds: one PageTable per layer group. A table covers positions [kv_base, end):
// its pages, oldest first. In a windowed group, pages whose every position has left the window of all
// positions still to come are let go, and kv_base moves up; stored keys are never moved or rotated again.
// Pages may be leased several times (choices of one prompt): a lease that must write into a page it shares
// gets a copy first.
//
//   window 6, page 4, accepted 13, written 15:   the query at 13 sees 8..13, so pages [0,4) and [4,8) are
//   gone
//
//   let go       let go       page 2       page 3
//   |0  1  2  3 |4  5  6  7  |8  9 10 11  |12 13 14 --|
//                             ^ kv_base       ^ accepted_len
//
// Always: each page is either free or leased, free_pages() + held_pages() + cached_pages() == total_pages(),
// each counted once (cached: kept for later requests, leased by none; 0 until there is a prefix cache); a
// windowed table holds at most ceil((window - 1 + ahead) / page_size) + 1 pages, where `ahead` is the tokens
// written beyond the accepted length (chunk x steps in flight).
#pragma once

#include <cstdint>
#include <vector>

#include "models/kv_layout.h"

namespace tramontane {

using PageId = int32_t;

struct PageTable {
  std::vector<PageId> pages;  // oldest first
  int64_t kv_base = 0;        // absolute position of pages[0]'s first token; a multiple of the page size
};

// A page to be copied before the step that writes to it runs. Within one step no page is both `from` and
// `to`.
struct PageCopy {
  PageId from = 0;
  PageId to = 0;
};

// The pages of one sequence. Filled and emptied by the store alone; read by whoever packs a step.
struct Lease {
  std::vector<PageTable> tables;  // [groups]
};

class KvStore {
 public:
  KvStore(const KvLayout& layout, int64_t pool_pages);

  const KvLayout& layout() const { return layout_; }
  int32_t page_size() const { return layout_.format.page_size; }

  // ---- pages ------------------------------------------------------------------------------------
  int64_t total_pages() const { return static_cast<int64_t>(references_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t held_pages() const { return total_pages() - free_pages(); }
  int64_t cached_pages() const { return 0; }
  // What Extend can take: the one number to plan by.
  int64_t available() const { return free_pages(); }
  // [groups] pages that leases hold in each group, a shared one counted once: together held_pages().
  const std::vector<int64_t>& held_pages_of_group() const { return held_pages_of_group_; }
  int32_t references(PageId page) const { return references_[static_cast<size_t>(page)]; }  // leases

  // ---- leases -----------------------------------------------------------------------------------
  Lease NewLease() const;  // of no page

  // Pages that Extend would take so that positions [written, end) can be written.
  int64_t PagesNeeded(const Lease& lease, int64_t written, int64_t end) const;

  // Pages the lease still lacks on its way to `end` tokens, window pages returning as they go and at most
  // `ahead` tokens written beyond the window at a time.
  int64_t PagesToReach(const Lease& lease, int64_t end, int64_t ahead) const;

  // Makes room for positions [written, end): new pages, and a copy of a shared page that would be written to
  // (appended to `copies`). REQUIRES: available() is at least PagesNeeded().
  void Extend(Lease& lease, int64_t written, int64_t end, std::vector<PageCopy>* copies);

  // Lets go of pages of windowed groups that no position >= accepted can see.
  void Roll(Lease& lease, int64_t accepted);

  // A second lease of the pages that hold positions below `end`, the partial one too.
  Lease Fork(const Lease& lease, int64_t end);

  // Lets go of everything. The only other places that drop a page are Roll, and Extend for a page it copies.
  void Release(Lease& lease);

  // Aborts when an invariant is broken. Reads every page: for tests, debug builds and idle moments.
  void CheckAccounting() const;

 private:
  template <typename Visit>
  void ForEachSharedPage(const PageTable& table, int64_t written, int64_t end, const Visit& visit) const;
  int64_t EndOf(const PageTable& table) const;
  PageId Take(size_t group);
  void Drop(size_t group, PageId page);

  const KvLayout layout_;
  std::vector<PageId> free_;         // last in, first out: a page just freed is warm in the caches
  std::vector<int32_t> references_;  // [pages] leases of each; 0: it is free
  int64_t shared_references_ = 0;    // beyond the first of each page: 0 when no page is shared
  std::vector<int64_t> held_pages_of_group_;
};

}  // namespace tramontane
