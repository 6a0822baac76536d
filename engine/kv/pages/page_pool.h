// PagePool: the pages of the KV pool. Each is free, leased (by one or several) or cached: leased by nobody,
// and known under a name that says what it holds, a node that means nothing here.
// Engine thread only.
//
// Always: free_pages() + cached_pages() + held_pages() == total_pages(), each page counted once.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv/names/prefix_tree.h"
#include "engine/kv/pages/eviction.h"

namespace tramontane {

class PagePool {
 public:
  using Node = PrefixTree::Node;

  PagePool(int64_t pages, size_t groups);

  int64_t total_pages() const { return static_cast<int64_t>(pages_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t cached_pages() const { return queues_.pages(); }  // evictable, all of them
  int64_t held_pages() const { return total_pages() - free_pages() - cached_pages(); }
  int64_t available() const { return free_pages() + cached_pages(); }
  // [groups] pages that are leased in each group, a shared one counted once: together held_pages().
  const std::vector<int64_t>& held_pages_of_group() const { return held_pages_of_group_; }
  const std::vector<int64_t>& cached_pages_of_group() const { return cached_pages_of_group_; }  // [groups]
  // Beyond the first lease of each page without a name: 0 when none of them is shared. (Those with a name are
  // full, and nobody writes to them but behind a cut.)
  int64_t shared_references() const { return shared_references_; }

  int32_t references(PageId page) const { return at(page).references; }  // leases
  size_t group(PageId page) const { return static_cast<size_t>(at(page).group); }
  Node node(PageId page) const { return at(page).node; }
  bool has_name(PageId page) const { return node(page) != PrefixTree::kNone; }
  EvictionRank rank(PageId page) const { return queues_.rank(page); }  // of a cached page
  PageId NextToGo() const { return queues_.Next(); }                   // kNoPage: no page is cached

  // Leases a free page to one. REQUIRES: there is one.
  PageId Take(size_t group);
  // One lease more, of a page that is leased or cached.
  void Share(PageId page);
  // One lease less. True: it was the last one, and the page has a name; the caller says by Cache when it
  // goes.
  bool Drop(PageId page);
  // kPreferred in place of kOthers, where somebody prefers it.
  void Cache(PageId page, EvictionRank rank);
  // The same for a page that is cached already.
  void CacheAnew(PageId page, EvictionRank rank) {
    Uncache(page);
    Cache(page, rank);
  }
  void Prefer(PageId page, bool is_preferred) { at(page).is_preferred = is_preferred; }
  // REQUIRES: it is leased, and has no name.
  void Name(PageId page, Node node);
  // A cached page is free then.
  void Unname(PageId page);

  // Aborts when an invariant is broken. Reads every page.
  void CheckAccounting() const;

 private:
  struct Page {
    int32_t references = 0;
    int32_t group = 0;              // where it is leased or cached
    Node node = PrefixTree::kNone;  // the block whose tokens it holds; kNone: it has no name
    bool is_preferred = false;
  };
  Page& at(PageId page) { return pages_[static_cast<size_t>(page)]; }
  const Page& at(PageId page) const { return pages_[static_cast<size_t>(page)]; }
  void Uncache(PageId page) {
    queues_.Remove(page);
    --cached_pages_of_group_[group(page)];
  }

  std::vector<PageId> free_;  // last in, first out: a page just freed is warm in the caches
  std::vector<Page> pages_;
  EvictionQueues queues_;
  int64_t shared_references_ = 0;
  std::vector<int64_t> held_pages_of_group_;
  std::vector<int64_t> cached_pages_of_group_;
};

}  // namespace tramontane
