#include "engine/run/slot_tables.h"

#include <algorithm>
#include <bit>

#include "engine/kv/names/paging.h"
#include "kernels/core/check.h"

namespace tramontane {

SlotTables::SlotTables(const KvLayout& layout, const EngineLimits& limits, int64_t context)
    : layout_(layout),
      sink_pages_(Paging(layout.format).PagesFor(context)),
      leases_(static_cast<size_t>(limits.max_sequences)),
      listed_(leases_.size() * layout.groups.size()) {
  for (size_t group = 0; group < layout.groups.size(); ++group) {
    const auto most = static_cast<uint64_t>(PagesInSight(layout, group, context, limits.max_tokens()));
    groups_.push_back({.begin = entries_, .width = static_cast<int64_t>(std::bit_ceil(most))});
    entries_ += limits.max_sequences * (sink_pages_ + groups_.back().width);
  }
}

void SlotTables::Update(const StepRow& row, std::vector<int32_t>* pairs) {
  const int32_t slot = row.sequence->slot();
  TM_CHECK(slot >= 0 && slot < std::ssize(leases_), "request %s: slot %d of %zu",
           row.sequence->request->id.c_str(), slot, leases_.size());
  uint64_t& lease = leases_[static_cast<size_t>(slot)];
  const bool is_other_lease = lease != row.sequence->lease().id;
  lease = row.sequence->lease().id;
  for (size_t group = 0; group < groups_.size(); ++group) UpdateGroup(row, group, is_other_lease, pairs);
}

// Of a lease that is known here only pages that the row writes to can be others than before: new ones, and
// the copy of one that was shared.
void SlotTables::UpdateGroup(const StepRow& row, size_t group, bool is_other_lease,
                             std::vector<int32_t>* pairs) {
  const int32_t slot = row.sequence->slot();
  const Paging paging = layout_.format;
  const Lease& lease = row.sequence->lease();
  const PageTable& table = lease.tables[group];
  Listed& listed = listed_[static_cast<size_t>(slot) * groups_.size() + group];
  if (is_other_lease) listed = {};

  const int64_t written = paging.PageOf(row.start);
  const int64_t end = paging.PagesFor(EndOf(row));
  const int64_t first_seen =
      paging.PageOf(std::max(table.kv_base, FirstSeen(lease, layout_, group, row.start)));
  TM_CHECK(end - first_seen <= groups_[group].width, "request %s: a row sees %lld pages, of at most %lld",
           row.sequence->request->id.c_str(), static_cast<long long>(end - first_seen),
           static_cast<long long>(groups_[group].width));
  const int64_t sinks = std::min(SinkPages(lease, layout_, group), end);
  const int64_t base = paging.PageOf(table.kv_base);
  const auto page_at = [&](int64_t number) {
    return number < base ? table.sinks[static_cast<size_t>(number)]
                         : table.pages[static_cast<size_t>(number - base)];
  };
  const auto list = [&](int64_t entry, PageId page) {
    pairs->push_back(static_cast<int32_t>(entry));
    pairs->push_back(page);
  };
  const int64_t begin = std::min(listed.end, written);
  for (int64_t number = begin; number < sinks; ++number)
    list(SinkEntry(group, slot) + number, page_at(number));
  for (int64_t number = std::max(begin, first_seen); number < end; ++number) {
    const PageId page = page_at(number);
    if (number + 1 == listed.end && page == listed.last) continue;
    list(FirstEntry(group, slot) + (number & PageMask(group)), page);
  }
  listed = {.end = end, .last = page_at(end - 1)};
}

}  // namespace tramontane
