// BatchBuilder: packs a StepPlan into one block of host memory, which the runner copies to the device as it
// is. Engine thread only. Reads the plan's sequences and their page tables; changes nothing.
//
//   block:  token_ids | positions | qo_indptr | per group: kv_indptr, page_indices, last_page_len, kv_base,
//   slots
//           | page copies | tokens in flight     each part at a multiple of 64 bytes, as long as this step
//           needs it
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/limits.h"
#include "engine/step_plan.h"
#include "models/kv_layout.h"
#include "models/model.h"

namespace tramontane {

// Where the parts of a packed step lie on the device.
struct PackedBatch {
  int64_t bytes = 0;                    // of the block that are used
  ForwardBatch forward;                 // forward.groups belongs to the builder, until its next Build
  const int32_t* copy_pairs = nullptr;  // [copy_count, 2] (from, to)
  int32_t copy_count = 0;
  AdvanceParams advance;  // of the tokens in flight; its records are filled in by the runner
};

class BatchBuilder {
 public:
  // `context`: no sequence is longer than that.
  BatchBuilder(const KvLayout& layout, const EngineLimits& limits, int64_t context);

  // Bytes of the largest step's block.
  int64_t max_bytes() const { return max_bytes_; }

  // Writes the block to `host`, to be copied to `device` before the result is used. Both have max_bytes().
  // A row whose token was sampled by the step before and is not known yet (start == tokens.size()) takes it
  // from records_in_flight[row], a record of that step. Where every token is known the list may be empty.
  PackedBatch Build(const StepPlan& plan, std::span<const int32_t> records_in_flight, std::byte* host,
                    std::byte* device);

 private:
  const KvLayout layout_;
  const int64_t max_bytes_;
  std::vector<PageTableView> groups_;  // [groups] of the last Build
};

}  // namespace tramontane
