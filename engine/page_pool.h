// PagePool: ids of the pages of one pool, with reference counts.
// Engine thread only.
// Always: free_pages() + held_pages() + cached_pages() == capacity(), each page counted once; a page is free
// exactly when its count is 0. (cached: counted pages that only a prefix cache refers to; 0 until there is
// one.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tramontane {

using PageId = int32_t;

class PagePool {
 public:
  explicit PagePool(int64_t capacity);

  int64_t capacity() const { return static_cast<int64_t>(references_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t held_pages() const { return capacity() - free_pages(); }
  int64_t cached_pages() const { return 0; }
  // References beyond the first of each page: 0 when no page is shared.
  int64_t shared_references() const { return shared_references_; }

  PageId Take();                   // with one reference. REQUIRES: free_pages() > 0
  void AddReference(PageId page);  // REQUIRES: the page is held
  bool Release(PageId page);       // drops one reference; true: it was the last one, and the page is free
  int32_t references(PageId page) const { return references_[static_cast<size_t>(page)]; }

  // Aborts when an invariant is broken. Reads every page: for tests, debug builds and idle moments.
  void CheckAccounting() const;

 private:
  std::vector<PageId> free_;         // last in, first out: a page just freed is warm in the caches
  std::vector<int32_t> references_;  // [capacity]
  int64_t shared_references_ = 0;
};

}  // namespace tramontane
