// BatchBuilder: packs a StepPlan into one block of host memory, which the runner copies to the device as it
// is, behind the page tables that the device keeps (SlotTables). Engine thread only. Reads the plan's
// sequences and their leases; changes nothing but what it knows of the device.
//
//   device:  tables | block
//   block:   token_ids | positions | qo_indptr | per group: first_entry, page_mask, kv_base, kv_end, slots
//            | what rows see of sinks, and which see none
//            | page copies | tokens in flight | changes of the tables
//
// Each part starts at a multiple of 64 bytes. Its room is what the step needs; for a recorded step, those of
// the first two lines have room for so many rows, and lie where they lay the last time. The largest block is
// measured by the function that lays out each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/request/limits.h"
#include "engine/run/slot_tables.h"
#include "engine/schedule/step_plan.h"
#include "kernels/core/status.h"
#include "kernels/packed_block.h"
#include "models/kv_layout.h"
#include "models/model.h"

namespace tramontane {

// What a recorded step has room for.
struct RecordedShape {
  int32_t rows = 0;
  bool sinks = false;  // rows may see some
};

// Where the parts of a packed step lie on the device.
struct PackedBatch {
  int64_t bytes = 0;  // of the block
  // forward.groups belong to the builder, until its next Build.
  ForwardBatch forward;
  const int32_t* copy_pairs = nullptr;  // [copy_count, 2] (from, to)
  int32_t copy_count = 0;
  AdvanceParams advance;  // of the tokens in flight; its records are filled in by the runner
  // Brings the tables up to date. Before it come as many changes as have no place in the block, [.., 2] in
  // host memory of the builder: tables that are new to the device, of long prefixes that were found.
  ScatterParams table_changes;
  std::span<const int32_t> early_changes;
};

class BatchBuilder {
 public:
  // `context`: no sequence is longer than that.
  BatchBuilder(const KvLayout& layout, const EngineLimits& limits, int64_t context);

  // Bytes of the largest step's block, and of what is in front of it on the device.
  int64_t max_bytes() const { return max_bytes_; }
  int64_t table_bytes() const { return PackedBlock::Bytes<int32_t>(tables_.entries()); }
  // What an op's 32 bits can name: more page ids are more than a device is asked to keep.
  Status CheckSize() const;

  // Writes the block to `host`, to be copied behind the table_bytes() at `device` before the result is used.
  // `host` has max_bytes(). The tables are those of all calls with this device memory.
  // A row whose token was sampled by the step before and is not known yet (start == tokens.size()) takes it
  // from records_in_flight[row], a record of that step. Where every token is known the list may be empty.
  // `shape`: for a decode step of at most so many rows, with room for as many. The rest is padding: no token
  // of it is attended, and no key is written. REQUIRES: no row sees sinks then that the shape has no room
  // for.
  PackedBatch Build(const StepPlan& plan, std::span<const int32_t> records_in_flight, std::byte* host,
                    std::byte* device, const RecordedShape* shape = nullptr);

  // Whether a row of the plan sees other positions than its layers' windows say.
  static bool HasSinks(const StepPlan& plan) { return std::ranges::any_of(plan.rows, SeesSinks); }

 private:
  const KvLayout layout_;
  const int64_t max_changes_;  // of tables, that a block has place for
  const int64_t max_bytes_;
  SlotTables tables_;
  // Of the last Build; [groups].
  std::vector<int32_t> changes_;  // of the tables: (entry, page)
  std::vector<PageTableView> groups_;
};

}  // namespace tramontane
