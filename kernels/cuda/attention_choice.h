// Which kernels a call of attention goes by on which device, and in what tiles. CudaBackend asks here, and so
// does bench/gpu, so that its tables measure what a server runs. Host side; pure functions.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/decoded_pages.h"
#include "kernels/cuda/runtime.h"

namespace tramontane::cuda {

// The kernels that a call of attention goes by.
enum class AttentionKernels { kMmaSync, kByRow, kLatent, kHopperPrefill, kHopperDecode };

// Of query, kv, batch, query_heads, sinks.len and mask.bits; no pointer is followed. Of a call whose pages
// are decoded first: of the one over what they become.
AttentionKernels ChooseAttention(const AttentionParams& params, const DeviceProperties& device);

// Whether a call's pages are decoded first, and it goes by the kernels that serve bf16 pages
// (decoded_pages.h): where they are quantised, windows decide alone, sequences have more rows than the
// smallest tile, and the room holds what they list, as far as the host knows.
bool DecodesPages(const AttentionParams& params, const DecodedRoom& room);

// The two calls that a call is made of where plain sequences stand in front of others: each is planned, and
// goes by the kernels, as if it were alone. Rows stay where they are, qo_indptr names them: query.rows alone
// says how many are the part's. Where only the device knows, either part has room for all.
AttentionParams PlainPart(const AttentionParams& params);
AttentionParams OtherPart(const AttentionParams& params);

// What a call is planned for, where no sequences share keys (AttentionSharers).
struct AttentionTiling {
  int32_t tile_rows = 0;      // rows (tokens x group) of a tile
  int32_t target_blocks = 0;  // that splits aim for
  int32_t max_items = 0;      // AttentionItemBound
  int32_t max_merges = 0;     // AttentionMergeBound
};

// Of a call that goes by `kernels`: those chosen, or kMmaSync for whatever kMmaSync serves.
AttentionTiling TileAttention(const AttentionParams& params, AttentionKernels kernels,
                              const DeviceProperties& device);

// What the kernels run by, as far as the call says it: all but the plan's lists and sizes and the room for
// parts.
AttentionRunParams RunParamsOf(const AttentionParams& params);

// Blocks that splits aim for, in tiles of as many rows over heads of head_dim: those that the device runs at
// once, by their registers and shared memory. Of kernels that are not of sm_90a.
int32_t TargetBlocks(const DeviceProperties& device, AttentionKernels kernels, int32_t tile_rows,
                     int32_t head_dim);
// The same of any of them over any heads, at most.
int32_t MostTargetBlocks(const DeviceProperties& device, int32_t tile_rows);
// The same of the kernels of sm_90a, which has the shared memory for them.
int32_t HopperTargetBlocks(const DeviceProperties& device, int32_t tile_rows);

}  // namespace tramontane::cuda
