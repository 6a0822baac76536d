// BatchBuilder: packs a StepPlan into one block of host memory, which the runner copies to the device as it
// is. Engine thread only. Reads the plan's sequences and their page tables; changes nothing.
//
//   block:  token_ids | positions | qo_indptr | per group: kv_indptr, last_page_len, kv_base, slots
//           | page copies | tokens in flight | per group: page_indices | what rows see of sinks | masks
//
// Each part starts at a multiple of 64 bytes. Its room is what the step needs, or, padded, what any decode
// step of that many rows may need: then every part lies where it lay the last time, as a recorded step
// requires.
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
  // Bytes [offset, offset + bytes) of the block that are to be copied: one piece, or padded one per group.
  struct Piece {
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  // These, forward.groups and forward.masks belong to the builder, until its next Build.
  std::span<const Piece> pieces;
  ForwardBatch forward;
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
  // The same for a decode step of at most `rows` rows, with room for as many. The rest is padding: no token
  // of it is attended, and no key is written. REQUIRES: no row sees sinks or has a mask.
  PackedBatch BuildPadded(const StepPlan& plan, std::span<const int32_t> records_in_flight, int32_t rows,
                          std::byte* host, std::byte* device);

  // Whether a row of the plan sees other positions than its layers' windows say.
  static bool HasSinks(const StepPlan& plan);

  struct Room;

 private:
  PackedBatch Pack(const StepPlan& plan, std::span<const int32_t> records_in_flight, const Room& room,
                   std::byte* host, std::byte* device);

  const KvLayout layout_;
  const int64_t context_;
  const int64_t ahead_;  // positions that may be planned and not yet applied, per sequence
  const int64_t max_bytes_;
  std::vector<PageTableView> groups_;     // [groups] of the last Build
  std::vector<AttentionMaskView> masks_;  // [groups] likewise, where some row has one
  std::vector<PackedBatch::Piece> pieces_;
};

}  // namespace tramontane
