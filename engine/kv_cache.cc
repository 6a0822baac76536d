#include "engine/kv_cache.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/paged_kv.h"

namespace tramontane {
namespace {

int64_t TableEnd(const PageTable& table, int32_t page_size) {
  return table.kv_base + static_cast<int64_t>(table.pages.size()) * page_size;
}

// Calls visit(index) for each page of the table that positions [written, end) lie in and that has other
// owners.
template <typename Visit>
void ForEachSharedPage(const PagePool& pool, const PageTable& table, int32_t page_size, int64_t written,
                       int64_t end, const Visit& visit) {
  if (pool.shared_references() == 0) return;  // the usual case: no page to look at
  end = std::min(end, TableEnd(table, page_size));
  for (int64_t at = written; at < end; at = (at / page_size + 1) * page_size) {
    const int64_t index = PageOf(at, table.kv_base, page_size);
    if (pool.references(table.pages[index]) > 1) visit(index);
  }
}

}  // namespace

KvCache::KvCache(const KvLayout& layout, int64_t pool_pages)
    : layout_(layout), pool_(pool_pages), held_pages_of_group_(layout.groups.size()) {
  TM_CHECK(page_size() > 0, "page size is %d", page_size());
}

std::vector<PageTable> KvCache::NewTables() const { return std::vector<PageTable>(layout_.groups.size()); }

int64_t KvCache::PagesNeeded(const std::vector<PageTable>& tables, int64_t written, int64_t end) const {
  int64_t pages = 0;
  for (const PageTable& table : tables) {
    const int64_t table_end = TableEnd(table, page_size());
    if (end > table_end) pages += PagesFor(end - table_end, page_size());
    ForEachSharedPage(pool_, table, page_size(), written, end, [&](int64_t) { ++pages; });
  }
  return pages;
}

int64_t KvCache::PagesToReach(const std::vector<PageTable>& tables, int64_t end, int64_t ahead) const {
  int64_t pages = 0;
  for (size_t group = 0; group < tables.size(); ++group) {
    const int64_t most = layout_.PagesForGroup(static_cast<int32_t>(group), end, ahead);
    pages += std::max<int64_t>(0, most - static_cast<int64_t>(tables[group].pages.size()));
  }
  return pages;
}

void KvCache::Extend(std::vector<PageTable>& tables, int64_t written, int64_t end,
                     std::vector<PageCopy>* copies) {
  for (size_t group = 0; group < tables.size(); ++group) {
    PageTable& table = tables[group];
    TM_CHECK(written >= table.kv_base && written <= TableEnd(table, page_size()),
             "position %lld is outside a table that starts at %lld", static_cast<long long>(written),
             static_cast<long long>(table.kv_base));
    ForEachSharedPage(pool_, table, page_size(), written, end, [&](int64_t index) {
      const PageId shared = table.pages[index];
      const PageId own = Take(group);
      const int64_t first_position = table.kv_base + index * page_size();
      if (first_position < written) copies->push_back({.from = shared, .to = own});
      table.pages[index] = own;
      Release(group, shared);
    });
    while (TableEnd(table, page_size()) < end) table.pages.push_back(Take(group));
  }
}

void KvCache::Roll(std::vector<PageTable>& tables, int64_t accepted) {
  for (size_t group = 0; group < tables.size(); ++group) {
    PageTable& table = tables[group];
    const int64_t first_visible = FirstVisible(accepted, layout_.groups[group].window);
    const int64_t drop =
        std::min(PageOf(first_visible, table.kv_base, page_size()), static_cast<int64_t>(table.pages.size()));
    if (drop <= 0) continue;
    for (int64_t index = 0; index < drop; ++index) Release(group, table.pages[index]);
    table.pages.erase(table.pages.begin(), table.pages.begin() + drop);
    table.kv_base += drop * page_size();
  }
}

std::vector<PageTable> KvCache::Fork(const std::vector<PageTable>& tables, int64_t end) {
  std::vector<PageTable> fork = NewTables();
  for (size_t group = 0; group < tables.size(); ++group) {
    const PageTable& table = tables[group];
    const int64_t pages = PagesFor(end - table.kv_base, page_size());
    TM_CHECK(end >= table.kv_base && pages <= static_cast<int64_t>(table.pages.size()),
             "a table of %zu pages from position %lld does not reach %lld", table.pages.size(),
             static_cast<long long>(table.kv_base), static_cast<long long>(end));
    fork[group].kv_base = table.kv_base;
    fork[group].pages.assign(table.pages.begin(), table.pages.begin() + pages);
    for (PageId page : fork[group].pages) pool_.AddReference(page);
  }
  return fork;
}

void KvCache::Clear(std::vector<PageTable>& tables) {
  for (size_t group = 0; group < tables.size(); ++group) {
    PageTable& table = tables[group];
    for (PageId page : table.pages) Release(group, page);
    table.pages.clear();
    table.kv_base = 0;
  }
}

PageId KvCache::Take(size_t group) {
  ++held_pages_of_group_[group];
  return pool_.Take();
}

void KvCache::Release(size_t group, PageId page) {
  if (pool_.Release(page)) --held_pages_of_group_[group];
}

}  // namespace tramontane
