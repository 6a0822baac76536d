#include "engine/kv/pages/eviction.h"

#include "kernels/core/check.h"

namespace tramontane {

void EvictionQueues::Add(PageId page, EvictionRank rank) {
  Ends& ends = ends_[static_cast<size_t>(rank)];
  link(page) = {.rank = rank, .older = ends.newest};
  (ends.newest == kNoPage ? ends.oldest : link(ends.newest).newer) = page;
  ends.newest = page;
  ++pages_;
  if (rank == EvictionRank::kPreferred) ++preferred_pages_;
}

void EvictionQueues::Remove(PageId page) {
  const auto [rank, older, newer] = link(page);
  Ends& ends = ends_[static_cast<size_t>(rank)];
  (older == kNoPage ? ends.oldest : link(older).newer) = newer;
  (newer == kNoPage ? ends.newest : link(newer).older) = older;
  --pages_;
  if (rank == EvictionRank::kPreferred) --preferred_pages_;
}

PageId EvictionQueues::Next() const {
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

std::vector<PageId> EvictionQueues::CheckedList() const {
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

}  // namespace tramontane
