// Attention on the device: its parameters, its work list, and the launches. Host side; any CUDA stream.
// One family serves prefill, decode and mixtures: see attention.cu for the grid, the bytes and the limits.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/device_pages.h"

namespace tramontane::cuda {

inline constexpr int kKeyTile = 64;           // keys that a block works on at once
inline constexpr int kMinSplitTiles = 4;      // a split has at least this many key tiles
inline constexpr int kMaxAttentionRows = 64;  // rows (tokens x group) of the large tile
inline constexpr int kByRowTileRows = 16;     // of the only tile where each row has bounds of its own

// One block column's work: rows [row_begin, row_begin + tile rows) of a sequence (row = token * group + head
// in group) against the keys at absolute positions [key_begin, key_end).
struct AttentionItem {
  int32_t sequence;
  int32_t row_begin;
  int32_t key_begin;  // a multiple of kKeyTile
  int32_t key_end;
  int32_t partial;  // slot of partial results; -1: the item is whole and writes its output
};

// Rows whose keys were split: partial slots [partial_begin, partial_begin + splits), in key order.
struct AttentionMerge {
  int32_t sequence;
  int32_t row_begin;
  int32_t partial_begin;
  int32_t splits;
};

struct AttentionWork {
  int32_t items;
  int32_t merges;
  int32_t partials;
  int32_t split_tiles;  // key tiles of one split
};

// What the plan is made from. Device pointers for the kernel, host pointers for its host twin.
struct AttentionPlanParams {
  const int32_t* kv_base;
  const int32_t* kv_end;
  const int32_t* qo_indptr;
  int32_t batch;
  int32_t window;     // 0: none
  int32_t group;      // query heads of a kv head
  int32_t tile_rows;  // 16 or 64
  int32_t kv_heads;
  int32_t target_blocks;   // AttentionBlocksPerMultiprocessor of them on each multiprocessor
  int32_t max_items;       // capacity of the lists: AttentionItemBound
  AttentionItem* items;    // [max_items]
  AttentionMerge* merges;  // [max_items]
  AttentionWork* work;     // [1]
  // Of rows that see other keys than the window's; then tile_rows is kByRowTileRows.
  const int32_t* left = nullptr;  // [tokens] (AttentionSinks), or null
  bool by_mask = false;           // each sees some of all keys that are listed
};

// Blocks that fit on a multiprocessor at once, by their registers.
constexpr int32_t AttentionBlocksPerMultiprocessor(int32_t tile_rows) { return tile_rows == 16 ? 3 : 2; }

// Blocks of one kv head that splits aim for.
constexpr int32_t AttentionBlocks(int32_t kv_heads, int32_t target_blocks) {
  return target_blocks > kv_heads ? target_blocks / kv_heads : 1;
}

// Items that can never be exceeded for these maxima: every tile of rows has one, and since a split is as long
// as all key tiles over AttentionBlocks, there are at most as many splits more.
constexpr int32_t AttentionItemBound(int32_t tokens, int32_t sequences, int32_t group, int32_t tile_rows,
                                     int32_t kv_heads, int32_t target_blocks) {
  return (tokens * group + tile_rows - 1) / tile_rows + sequences + AttentionBlocks(kv_heads, target_blocks);
}

// Partial slots that can never be exceeded: a tile of rows that is split at all has fewer than two splits for
// each such length of its keys.
constexpr int32_t AttentionPartialBound(int32_t kv_heads, int32_t target_blocks) {
  return 2 * AttentionBlocks(kv_heads, target_blocks);
}

// Tiles of rows that are split: each has two partial slots at least. `keys` of any tile at most, where that
// is known: too few of them are never split, and nothing has to be merged.
constexpr int32_t AttentionMergeBound(int32_t kv_heads, int32_t target_blocks, int64_t keys) {
  return keys <= int64_t{kKeyTile} * kMinSplitTiles ? 0 : AttentionBlocks(kv_heads, target_blocks);
}

// Keys between the begin of a tile of rows' first key tile and its last key, at most. No window: no bound.
constexpr int64_t AttentionKeyBound(int32_t window, int32_t group, int32_t tile_rows) {
  const int64_t tokens = (tile_rows - 1) / group + 2;  // that rows of one tile belong to
  return window > 0 ? window + tokens - 1 + kKeyTile - 1 : INT64_MAX;
}

// The host twin of the plan kernel: the same lists, from host pointers.
void PlanAttentionOnHost(const AttentionPlanParams& params);

struct AttentionRunParams {
  const void* query;  // [tokens, query_heads * head_dim], rows query_stride apart
  void* out;          // [tokens, query_heads * head_dim], rows out_stride apart
  int64_t query_stride;
  int64_t out_stride;
  KvLayerView kv;
  PageTableView table;
  const int32_t* qo_indptr;
  const AttentionItem* items;
  const AttentionMerge* merges;
  const AttentionWork* work;
  float* partial_out;  // [partials, kv_heads, tile_rows, head_dim] f32, normalised
  float* partial_lse;  // [partials, kv_heads, tile_rows] base 2
  float* lse;          // [tokens, query_heads] base 2, or null
  int32_t window;
  int32_t group;
  int32_t tile_rows;
  int32_t max_items;
  int32_t max_merges;      // AttentionMergeBound; 0: nothing can be split, and nothing is merged
  float scale;             // > 0
  DevicePages pages = {};  // of kv; set by RunAttention and RunAttentionByRow
};

// Attention whose rows see other keys than their positions and the window say, or whose pages are quantised.
struct AttentionByRowParams {
  AttentionRunParams run;  // bf16, or quantised pages; tile_rows is kByRowTileRows
  AttentionSinks sinks;    // bf16 queries; len null: none
  AttentionMaskView mask;  // bits null: no sequence has one
  bool wide = false;       // set by RunAttentionByRow
};

// Queue the launches on `stream` (a cudaStream_t). 0 or the runtime's error. REQUIRES: AttentionSupported.
int PlanAttention(const AttentionPlanParams& params, void* stream);
int RunAttention(const AttentionRunParams& params, void* stream);
int RunAttentionByRow(const AttentionByRowParams& params, void* stream);
// The second half of both: joins the splits that `params.merges` lists.
int MergeAttention(const AttentionRunParams& params, void* stream);

constexpr bool AttentionSupported(DType dtype, int32_t head_dim, int32_t group) {
  return dtype != DType::kF32 && (head_dim == 32 || head_dim == 64 || head_dim == 96 || head_dim == 128) &&
         group >= 1 && group <= 16;
}

}  // namespace tramontane::cuda
