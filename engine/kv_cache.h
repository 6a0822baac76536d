// KvCache: the page tables of sequences over one pool, one table per layer group; paged and rolling.
// Engine thread only.
//
// A PageTable covers positions [kv_base, end): its pages, oldest first. In a windowed group, pages whose
// every position has left the window of all positions still to come are released, and kv_base moves up;
// cached keys are never moved or rotated again. Pages may be shared (choices of one prompt; later a prefix
// cache): a table that must write into a page it shares gets a copy first.
//
//   window 6, page 4, accepted 13, written 15:   the query at 13 sees 8..13, so pages [0,4) and [4,8) are
//   gone
//
//   released     released     page 2       page 3
//   |0  1  2  3 |4  5  6  7  |8  9 10 11  |12 13 14 --|
//                             ^ kv_base       ^ accepted_len
//
// Always: a windowed table holds at most ceil((window - 1 + ahead) / page_size) + 1 pages, where `ahead` is
// the tokens written beyond the accepted length (chunk x steps in flight).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/limits.h"
#include "engine/page_pool.h"
#include "models/kv_layout.h"

namespace tramontane {

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

class KvCache {
 public:
  KvCache(const KvLayout& layout, int64_t pool_pages);

  const KvLayout& layout() const { return layout_; }
  int32_t page_size() const { return layout_.format.page_size; }
  PagePool& pool() { return pool_; }
  const PagePool& pool() const { return pool_; }
  // [groups] pages that tables of each group hold, a shared one counted once: together the pool's held pages.
  const std::vector<int64_t>& held_pages_of_group() const { return held_pages_of_group_; }

  std::vector<PageTable> NewTables() const;  // [groups], empty

  // Pages that Extend would take so that positions [written, end) can be written.
  int64_t PagesNeeded(const std::vector<PageTable>& tables, int64_t written, int64_t end) const;

  // Pages the tables still lack on their way to `end` tokens, window pages returning as they go and at most
  // `ahead` tokens written beyond the window at a time.
  int64_t PagesToReach(const std::vector<PageTable>& tables, int64_t end, int64_t ahead) const;

  // Makes room for positions [written, end): new pages, and a copy of a shared page that would be written to
  // (appended to `copies`). REQUIRES: the pool has PagesNeeded() free pages.
  void Extend(std::vector<PageTable>& tables, int64_t written, int64_t end, std::vector<PageCopy>* copies);

  // Releases pages of windowed groups that no position >= accepted can see.
  void Roll(std::vector<PageTable>& tables, int64_t accepted);

  // A second owner of the pages that hold positions below `end`.
  std::vector<PageTable> Fork(const std::vector<PageTable>& tables, int64_t end);

  // Releases everything. The only other places that drop a page are Roll, and Extend for a page it copies.
  void Clear(std::vector<PageTable>& tables);

 private:
  PageId Take(size_t group);
  void Release(size_t group, PageId page);

  KvLayout layout_;
  PagePool pool_;
  std::vector<int64_t> held_pages_of_group_;
};

}  // namespace tramontane
