#include "engine/kv/pages/page_pool.h"

#include <numeric>

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

void PagePool::CacheAnew(PageId page, EvictionRank rank) {
  Uncache(page);
  Cache(page, rank);
}

void PagePool::Uncache(PageId page) {
  queues_.Remove(page);
  --cached_pages_of_group_[group(page)];
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
  enum class State { kLeased, kFree, kCached };
  std::vector<State> states(pages_.size(), State::kLeased);
  const auto mark = [&](PageId page, State state) {
    TM_CHECK(references(page) == 0, "page %d is not leased, and has %d leases", page, references(page));
    TM_CHECK(states[static_cast<size_t>(page)] == State::kLeased, "page %d is free or cached twice", page);
    states[static_cast<size_t>(page)] = state;
  };
  for (const PageId page : free_) mark(page, State::kFree);
  for (const PageId page : queues_.CheckedList()) mark(page, State::kCached);
  int64_t shared = 0;
  std::vector<int64_t> held(held_pages_of_group_.size());
  std::vector<int64_t> cached(held.size());
  for (size_t i = 0; i < pages_.size(); ++i) {
    const Page& page = pages_[i];
    const bool is_named = page.node != PrefixTree::kNone;
    TM_CHECK(states[i] != State::kLeased || page.references > 0, "page %zu is in no state", i);
    TM_CHECK(is_named ? states[i] != State::kFree : states[i] != State::kCached,
             "page %zu is free with a name, or cached without one", i);
    if (states[i] == State::kLeased) ++held[static_cast<size_t>(page.group)];
    if (states[i] == State::kCached) ++cached[static_cast<size_t>(page.group)];
    if (page.references > 1 && !is_named) shared += page.references - 1;
  }
  TM_CHECK(shared == shared_references_, "%lld references are shared, not %lld",
           static_cast<long long>(shared), static_cast<long long>(shared_references_));
  TM_CHECK(held == held_pages_of_group_ && cached == cached_pages_of_group_,
           "the pages of a group are not those that are counted");
  TM_CHECK(std::accumulate(held.begin(), held.end(), int64_t{0}) == held_pages() &&
               std::accumulate(cached.begin(), cached.end(), int64_t{0}) == cached_pages(),
           "%lld pages are held and %lld cached, which no group has", static_cast<long long>(held_pages()),
           static_cast<long long>(cached_pages()));
}

}  // namespace tramontane
