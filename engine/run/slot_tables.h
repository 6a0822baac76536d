// SlotTables: the page tables that the device keeps, by slot (Sequence::slot), and what a step must change in
// them. Engine thread only; the entries themselves are on the device, and nobody reads them back.
//
//   of one slot and group:   | sinks: page 0, 1, .. | ring: page n at n mod width | ...
//
// So a window that rolls on moves no entry, and a decode row changes none but when it begins a page. A slot's
// entries are those of the lease that was last updated there: Lease::id tells whether they still are.
//
// The width is a power of two that holds what one row may see, under any context policy: pages that a row of
// the step sees are never overwritten by it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request/limits.h"
#include "engine/schedule/step_plan.h"
#include "models/kv_layout.h"

namespace tramontane {

class SlotTables {
 public:
  // `context`: no sequence without a policy is longer than that, no policy holds more.
  SlotTables(const KvLayout& layout, const EngineLimits& limits, int64_t context);

  // Page ids of all slots and groups.
  int64_t entries() const { return entries_; }
  int32_t FirstEntry(size_t group, int32_t slot) const {
    return SinkEntry(group, slot) + static_cast<int32_t>(sink_pages_);
  }
  int32_t PageMask(size_t group) const { return static_cast<int32_t>(groups_[group].width - 1); }
  int32_t SinkEntry(size_t group, int32_t slot) const {
    return static_cast<int32_t>(groups_[group].begin + slot * (sink_pages_ + groups_[group].width));
  }

  // Appends (entry, page) for each entry that a row's step changes, and takes them for changed. REQUIRES: the
  // row sees what it sees by its position (no mask).
  void Update(const StepRow& row, std::vector<int32_t>* pairs);

 private:
  struct Group {
    int64_t begin = 0;  // of its first slot
    int64_t width = 0;
  };
  // What is listed of a slot's lease in one group.
  struct Listed {
    int64_t end = 0;  // pages below this number, as far back as later rows see
    PageId last = kNoPage;
  };

  void UpdateGroup(const StepRow& row, size_t group, bool is_other_lease, std::vector<int32_t>* pairs);

  const KvLayout layout_;
  const int64_t sink_pages_;  // the most of any policy
  std::vector<Group> groups_;
  int64_t entries_ = 0;
  std::vector<uint64_t> leases_;  // [slots]
  std::vector<Listed> listed_;    // [slots, groups]
};

}  // namespace tramontane
