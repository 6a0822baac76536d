// One call of the CUDA attention kernels, from plan to output, on the device of tests/support/cuda_device.h;
// for tests of values and of bytes. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/attention.h"
#include "tests/support/paged_kv_fixture.h"

namespace tramontane {

// Blocks of the kernels of sm_90a: few, so that each takes several items.
inline constexpr int32_t kHopperBlocks = 3;

// What a row sees beside its window, as AttentionSinks.
struct RowOfSinks {
  int32_t len = 0, left = 0, query_position = 0;
};

// Sequence `sequence` lists the pages of `from` up to a position.
struct SharedPages {
  int32_t sequence = 0, from = 0;
  int64_t end = 0;
};

struct AttentionCase {
  std::string name;
  PagedKvShape kv;
  std::vector<PagedSpan> spans;
  std::vector<int32_t> queries;  // the last tokens of each sequence
  int32_t group = 4;
  int32_t window = 0;
  int32_t tile_rows = 16;
  int32_t target_blocks = 8;
  // Of each token; none: attention by the window alone. Queries for sinks are the others.
  std::vector<RowOfSinks> sinks = {};
  bool sinks_windowed = false;
  std::vector<uint8_t> mask = {};  // of one sequence, instead of sinks and window
  bool hopper = false;             // by the kernels of sm_90a
  std::vector<SharedPages> shared = {};
  // Of sharers (AttentionSharersParams::least_tiles); 0: nobody looks for any.
  int32_t least_tiles_saved = 0;

  int32_t heads() const { return group * kv.kv_heads; }
};

struct AttentionOutcome {
  std::vector<uint16_t> out;  // [tokens, heads * head_dim] bits
  std::vector<float> lse;     // [tokens, heads] base 2
  // Of rows whose keys were split: [partials, kv_heads, tile_rows, head_dim], and without head_dim.
  std::vector<float> partial_out, partial_lse;
  // The work list; that of the host twin was the same.
  cuda::AttentionWork work;
  std::vector<cuda::AttentionItem> items;
  std::vector<cuda::AttentionMerge> merges;
  std::vector<cuda::AttentionSharers> sharers;  // empty where nobody looked for any; those of the twin, too
  int32_t max_items = 0;
};

// The case's keys and values, with its queries and what its sequences share.
void FillCase(const AttentionCase& c, PagedKvFixture* kv);

double AttentionDouble(DType dtype, uint16_t bits);
// Standard normal, rounded to the case's dtype, over quantised pages to bf16: [tokens, heads * head_dim].
std::vector<uint16_t> RandomQuery(const AttentionCase& c, int32_t tokens);

// Plans and runs. Output, lse and partial results are NaN before. The pool is copied to the device.
AttentionOutcome RunAttentionCase(const AttentionCase& c, const PagedKvFixture& kv,
                                  const std::vector<uint16_t>& query);
// The same over pages where they lie, for pools that cannot be read whole. Emulator only.
AttentionOutcome RunAttentionInPlace(const AttentionCase& c, const PagedKvFixture& kv,
                                     const std::vector<uint16_t>& query);

PagedKvShape KvOf(int32_t kv_heads, int32_t head_dim, int32_t page_size, DType dtype = DType::kBf16,
                  KvOrder order = KvOrder::kHnd);

}  // namespace tramontane
