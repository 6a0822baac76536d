#include "engine/kv_store.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/paged_kv.h"

namespace tramontane {

KvStore::KvStore(const KvLayout& layout, int64_t pool_pages)
    : layout_(layout),
      references_(static_cast<size_t>(pool_pages), 0),
      held_pages_of_group_(layout.groups.size()) {
  TM_CHECK(page_size() > 0, "page size is %d", page_size());
  free_.reserve(references_.size());
  for (int64_t page = pool_pages - 1; page >= 0; --page) free_.push_back(static_cast<PageId>(page));
}

Lease KvStore::NewLease() const { return {std::vector<PageTable>(layout_.groups.size())}; }

int64_t KvStore::PagesNeeded(const Lease& lease, int64_t written, int64_t end) const {
  int64_t pages = 0;
  for (const PageTable& table : lease.tables) {
    const int64_t table_end = EndOf(table);
    if (end > table_end) pages += PagesFor(end - table_end, page_size());
    ForEachSharedPage(table, written, end, [&](int64_t) { ++pages; });
  }
  return pages;
}

int64_t KvStore::PagesToReach(const Lease& lease, int64_t end, int64_t ahead) const {
  int64_t pages = 0;
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    const int64_t most = layout_.PagesForGroup(static_cast<int32_t>(group), end, ahead);
    pages += std::max<int64_t>(0, most - static_cast<int64_t>(lease.tables[group].pages.size()));
  }
  return pages;
}

void KvStore::Extend(Lease& lease, int64_t written, int64_t end, std::vector<PageCopy>* copies) {
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    PageTable& table = lease.tables[group];
    TM_CHECK(written >= table.kv_base && written <= EndOf(table),
             "position %lld is outside a table that starts at %lld", static_cast<long long>(written),
             static_cast<long long>(table.kv_base));
    ForEachSharedPage(table, written, end, [&](int64_t index) {
      const PageId shared = table.pages[index];
      const PageId own = Take(group);
      const int64_t first_position = table.kv_base + index * page_size();
      if (first_position < written) copies->push_back({.from = shared, .to = own});
      table.pages[index] = own;
      Drop(group, shared);
    });
    while (EndOf(table) < end) table.pages.push_back(Take(group));
  }
}

void KvStore::Roll(Lease& lease, int64_t accepted) {
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    PageTable& table = lease.tables[group];
    const int64_t first_visible = FirstVisible(accepted, layout_.groups[group].window);
    const int64_t drop =
        std::min(PageOf(first_visible, table.kv_base, page_size()), static_cast<int64_t>(table.pages.size()));
    if (drop <= 0) continue;
    for (int64_t index = 0; index < drop; ++index) Drop(group, table.pages[index]);
    table.pages.erase(table.pages.begin(), table.pages.begin() + drop);
    table.kv_base += drop * page_size();
  }
}

Lease KvStore::Fork(const Lease& lease, int64_t end) {
  Lease fork = NewLease();
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    const PageTable& table = lease.tables[group];
    const int64_t pages = PagesFor(end - table.kv_base, page_size());
    TM_CHECK(end >= table.kv_base && pages <= static_cast<int64_t>(table.pages.size()),
             "a table of %zu pages from position %lld does not reach %lld", table.pages.size(),
             static_cast<long long>(table.kv_base), static_cast<long long>(end));
    PageTable& shared = fork.tables[group];
    shared.kv_base = table.kv_base;
    shared.pages.assign(table.pages.begin(), table.pages.begin() + pages);
    for (const PageId page : shared.pages) ++references_[page];
    shared_references_ += pages;
  }
  return fork;
}

void KvStore::Release(Lease& lease) {
  for (size_t group = 0; group < lease.tables.size(); ++group) {
    PageTable& table = lease.tables[group];
    for (const PageId page : table.pages) Drop(group, page);
    table.pages.clear();
    table.kv_base = 0;
  }
}

void KvStore::CheckAccounting() const {
  std::vector<bool> is_free(references_.size(), false);
  for (const PageId page : free_) {
    TM_CHECK(references_[page] == 0, "page %d is free with %d references", page, references_[page]);
    TM_CHECK(!is_free[page], "page %d is free twice", page);
    is_free[page] = true;
  }
  int64_t shared = 0;
  for (size_t page = 0; page < references_.size(); ++page) {
    TM_CHECK(is_free[page] || references_[page] > 0, "page %zu is neither free nor leased", page);
    if (references_[page] > 1) shared += references_[page] - 1;
  }
  TM_CHECK(shared == shared_references_, "%lld references are shared, not %lld",
           static_cast<long long>(shared), static_cast<long long>(shared_references_));
  int64_t held = 0;
  for (const int64_t pages : held_pages_of_group_) held += pages;
  TM_CHECK(held == held_pages(), "%lld pages are held by groups, and %lld in all",
           static_cast<long long>(held), static_cast<long long>(held_pages()));
}

// Calls visit(index) for each page of the table that positions [written, end) lie in and that has other
// leases.
template <typename Visit>
void KvStore::ForEachSharedPage(const PageTable& table, int64_t written, int64_t end,
                                const Visit& visit) const {
  if (shared_references_ == 0) return;  // the usual case: no page to look at
  end = std::min(end, EndOf(table));
  for (int64_t at = written; at < end; at = (at / page_size() + 1) * page_size()) {
    const int64_t index = PageOf(at, table.kv_base, page_size());
    if (references_[table.pages[index]] > 1) visit(index);
  }
}

int64_t KvStore::EndOf(const PageTable& table) const {
  return table.kv_base + static_cast<int64_t>(table.pages.size()) * page_size();
}

PageId KvStore::Take(size_t group) {
  TM_CHECK(!free_.empty(), "the pool of %zu pages is empty", references_.size());
  const PageId page = free_.back();
  free_.pop_back();
  references_[page] = 1;
  ++held_pages_of_group_[group];
  return page;
}

void KvStore::Drop(size_t group, PageId page) {
  TM_CHECK(references_[page] > 0, "page %d is released once too often", page);
  if (--references_[page] > 0) {
    --shared_references_;
    return;
  }
  --held_pages_of_group_[group];
  free_.push_back(page);
}

}  // namespace tramontane
