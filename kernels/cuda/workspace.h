// Where the buffers that a step works in lie in one piece of device memory, and how large it is: the CUDA
// backend's part of a memory plan. Host side; pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/backends/cuda_library.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/runtime.h"

namespace tramontane::cuda {

// Plans of attention that are kept at once. More (table, window) pairs than that in a step, or half as many
// where it has plain sequences and others: the oldest plan is made again.
inline constexpr size_t kAttentionPlans = 8;

// Whether a tile of a decode holds the rows of several sequences.
constexpr bool CanShare(int32_t group) { return SharersOfTile(group) >= 2; }

// What options say of products, or what stands for it where they say nothing.
struct ProductForms {
  bool fp8 = false;  // of fp8 by fp8, on a device that has them
  int32_t least_decoded_rows = 0;
  int64_t tiled_outputs = 0;  // of a weight with so many one tile of rows is not decoded for
  int64_t decoded_slice_bytes = 0;

  ProductForms(const CudaBackendOptions& options, const DeviceProperties& device);
};

// Where each buffer lies in the workspace. T: tokens of the largest step, L: its rows of logits.
struct WorkspaceMap {
  int64_t decoded = 0;  // [decoded_bytes]: a slice of a weight in bf16; where any is quantised
  int64_t decoded_bytes = 0;
  // [DecodedRoomFor] bf16: a layer's pages, where they are quantised, in the same place as all from `decoded`
  // to `adjusted`, which no attention uses.
  int64_t decoded_pages = 0;
  int64_t normalised = 0;   // [max(T, L), hidden] bf16: rows of x as a product takes them
  int64_t quantised = 0;    // [T, hidden] e4m3: the same of products of fp8; where there are any
  int64_t x_scales = 0;     // [T] f32, of these
  int64_t gate_up = 0;      // [T, 2 * hidden] bf16: no model's intermediate size exceeds maxima.hidden
  int64_t moe_chosen = 0;   // [T, experts per token] i32
  int64_t moe_shares = 0;   // [T, experts per token] f32
  int64_t moe_inner = 0;    // [T, experts per token, expert_intermediate] bf16
  int64_t moe_outer = 0;    // [T, experts per token, hidden] f32
  int64_t moe_order = 0;    // [T, experts per token] i32
  int64_t moe_tiles = 0;    // [MoeTileBound] MoeTile
  int64_t adjusted = 0;     // [L, vocab] f32
  int64_t partial_out = 0;  // [partials, kv_heads, tile rows, head_dim] f32
  int64_t partial_lse = 0;  // [partials, kv_heads, tile rows] f32
  int64_t split = 0;        // [SplitSampleBytes] zeros between calls; where a row may have several blocks
  int64_t parts_done = 0;   // [AttentionCountBound] i32, zeros between calls
  int64_t page_lists = 0;   // [DecodedPages::ListBytes]
  int64_t plans = 0;        // [kAttentionPlans] plan_bytes each: items, merges, work, sharers, shares
  int64_t plan_merges = 0;  // within a plan
  int64_t plan_work = 0;
  int64_t plan_sharers = 0;
  int64_t plan_shares = 0;
  int64_t plan_bytes = 0;
  int32_t plan_items = 0;  // capacity of a plan
  int64_t bytes = 0;
};

WorkspaceMap MapWorkspace(const StepMaxima& maxima, const DeviceProperties& device,
                          const ProductForms& products);

}  // namespace tramontane::cuda
