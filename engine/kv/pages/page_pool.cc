#include "engine/kv/pages/page_pool.h"

#include "kernels/core/check.h"

namespace tramontane {

PagePool::PagePool(int64_t pages, size_t groups)
    : pages_(static_cast<size_t>(pages)),
      queues_(pages),
      held_pages_of_group_(groups),
      cached_pages_of_group_(groups) {
  free_.reserve(pages_.size());
  for (int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<PageId>(page));
}

PageId PagePool::Take(size_t group) {
  TM_CHECK(!free_.empty(), "the pool of %zu pages is empty", pages_.size());
  const PageId page = free_.back();
  free_.pop_back();
  at(page) = {.references = 1, .group = static_cast<int32_t>(group)};
  ++held_pages_of_group_[group];
  return page;
}

void PagePool::Share(PageId id) {
  Page& page = at(id);
  if (page.references > 0) {
    if (page.node == PrefixTree::kNone) ++shared_references_;
  } else {
    Uncache(id);
    ++held_pages_of_group_[group(id)];
  }
  ++page.references;
}

bool PagePool::Drop(PageId id) {
  Page& page = at(id);
  TM_CHECK(page.references > 0, "page %d is released once too often", id);
  const bool has_name = page.node != PrefixTree::kNone;
  if (--page.references > 0) {
    if (!has_name) --shared_references_;
    return false;
  }
  --held_pages_of_group_[group(id)];
  if (!has_name) free_.push_back(id);
  return has_name;
}

void PagePool::Cache(PageId page, EvictionRank rank) {
  const bool is_preferred = rank == EvictionRank::kOthers && at(page).is_preferred;
  queues_.Add(page, is_preferred ? EvictionRank::kPreferred : rank);
  ++cached_pages_of_group_[group(page)];
}

void PagePool::Name(PageId id, Node node) {
  Page& page = at(id);
  page.node = node;
  shared_references_ -= page.references - 1;
}

void PagePool::Unname(PageId id) {
  Page& page = at(id);
  page.node = PrefixTree::kNone;
  if (page.references > 0) {
    shared_references_ += page.references - 1;
    return;
  }
  Uncache(id);
  free_.push_back(id);
}

void PagePool::CheckAccounting() const {
  std::vector<int32_t> states(pages_.size());  // that a page is in
  std::vector<int64_t> held(held_pages_of_group_.size());
  std::vector<int64_t> cached(held.size());
  int64_t shared = 0;
  for (const PageId page : free_) {
    TM_CHECK(!has_name(page), "page %d is free with a name", page);
    ++states[static_cast<size_t>(page)];
  }
  for (const PageId page : queues_.CheckedList()) {
    TM_CHECK(has_name(page), "page %d is cached without a name", page);
    ++states[static_cast<size_t>(page)];
    ++cached[group(page)];
  }
  for (PageId page = 0; page < total_pages(); ++page) {
    const int32_t leases = references(page);
    const int32_t in_states = states[static_cast<size_t>(page)] + (leases > 0 ? 1 : 0);
    TM_CHECK(in_states == 1, "page %d is in %d states, and has %d leases", page, in_states, leases);
    if (leases > 0) ++held[group(page)];
    if (leases > 1 && !has_name(page)) shared += leases - 1;
  }
  TM_CHECK(shared == shared_references_, "%lld references are shared, not %lld",
           static_cast<long long>(shared), static_cast<long long>(shared_references_));
  TM_CHECK(held == held_pages_of_group_ && cached == cached_pages_of_group_,
           "the pages of a group are not those that are counted");
}

}  // namespace tramontane
