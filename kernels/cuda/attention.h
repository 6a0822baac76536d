// Attention on the device: its parameters, its work list, and the launches. Host side; any CUDA stream.
// One family serves prefill, decode and mixtures: see attention.cu for the grid, the bytes and the limits.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/device_pages.h"

namespace tramontane::cuda {

inline constexpr int kKeyTile = 64;         // keys that a block works on at once
inline constexpr int kMinSplitTiles = 4;    // a split has at least this many key tiles
inline constexpr int kSplitCost = 6;        // SplitCost of a tile that is not kByRowTileRows
inline constexpr int kLargeTileRows = 64;   // rows (tokens x group) of the large tile
inline constexpr int kWideTileRows = 128;   // of the one whose warps take 32 rows each: HasWideTile
inline constexpr int kByRowTileRows = 16;   // of the only tile where each row has bounds of its own
inline constexpr int kAttentionStages = 2;  // tiles of keys, and of values, that a block has at once

// One block column's work: rows [row_begin, row_begin + tile rows) of a sequence (row = token * group + head
// in group) against the keys at absolute positions [key_begin, key_end).
struct AttentionItem {
  int32_t sequence;
  int32_t row_begin;
  int32_t key_begin;  // a multiple of kKeyTile
  int32_t key_end;
  int32_t partial;  // slot of partial results; -1: the item is whole and writes its output; less: OfSharers
  int32_t merge;    // which joins its rows, where partial is a slot; else -1
};

// ---- sharers: decode rows that read the same keys once (cascade attention)
//
// Sequences of one query each that lie side by side in the batch and list the same pages for the keys
// [begin, end) are sharers: their rows go over these keys together, in tiles of whole sequences, and each
// over what it has for itself before and behind them. So a sequence of sharers always is in parts, which are
// joined in the order of their keys like any other splits. All sharers see all of [begin, end): a window's
// left edge is before it.

// Of each sequence: whom it shares with.
struct AttentionSharers {
  int32_t first;  // sequence
  int32_t count;  // sequences from there on; 0: it shares nothing
  int32_t begin;  // multiples of kKeyTile
  int32_t end;
};

// Of each sequence of sharers, what the plan settled.
struct AttentionShare {
  int32_t partial;  // slot of its rows' first split of the shared keys
  int32_t merge;    // which joins it
};

// Sequences that are looked at; those behind them in a batch share nothing.
inline constexpr int32_t kMostSharers = 256;

// Bytes of keys and values, all kv heads of one layer together, that sharers save at least. It is what a
// device of 3 TB/s reads in 2.5 us, about as long as a launch takes: below that the search, the sequences
// that would not have been split and the splits to be joined may cost more. An estimate, not measured yet.
inline constexpr int64_t kLeastBytesSaved = int64_t{8} << 20;

// The sequences whose rows fill a tile of kByRowTileRows; a tile of one saves nothing.
constexpr int32_t SharersOfTile(int32_t group) { return kByRowTileRows / group; }

// The rows of `members` sequences from AttentionItem::sequence on, a query each, over keys that all of them
// see: split number `split` of the keys they share. Their slots are in AttentionShare.
constexpr int32_t OfSharers(int32_t split, int32_t members) {
  return -2 - (split * kByRowTileRows + members - 1);
}
constexpr bool IsOfSharers(int32_t partial) { return partial < -1; }
constexpr int32_t MembersOf(int32_t partial) {
  return IsOfSharers(partial) ? (-2 - partial) % kByRowTileRows + 1 : 1;
}
constexpr int32_t SharedSplitOf(int32_t partial) { return (-2 - partial) / kByRowTileRows; }

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
  int32_t tile_rows;  // 16, 64 or 128
  int32_t kv_heads;
  int32_t target_blocks;   // TargetBlocks
  int32_t max_items;       // capacity of the lists: AttentionItemBound
  AttentionItem* items;    // [max_items]
  AttentionMerge* merges;  // [max_items]
  AttentionWork* work;     // [1]
  // Of rows that see other keys than the window's; then tile_rows is kByRowTileRows.
  const int32_t* left = nullptr;  // [tokens] (AttentionSinks), or null
  bool by_mask = false;           // each sees some of all keys that are listed
  // Of a decode whose rows see a window's keys: [batch], and out [batch]; null: nobody shares.
  const AttentionSharers* sharers = nullptr;
  AttentionShare* shares = nullptr;
};

// What sharers are found from. Device pointers for the kernel, host pointers for its host twin.
struct AttentionSharersParams {
  PageTableView table;
  const int32_t* qo_indptr;
  int32_t batch;
  int32_t page_size;
  int32_t window;             // 0: none
  int32_t group;              // 1 to kByRowTileRows
  int32_t least_tiles;        // key tiles that sharers save at least: LeastTilesSaved
  AttentionSharers* sharers;  // [batch] out
};

// Key tiles that a tile of rows has beyond a split's length before it is split: about as long as its parts
// take to be written, counted and joined. On an H100 a tile of 64 keys takes 1 us of 128 rows there (2 us of
// 64 rows by mma.sync), and 1 x 512, of 8 such tiles at most, 42 us in parts. Of the rows of decode nothing
// was seen to gain: none.
constexpr int32_t SplitCost(int32_t tile_rows) { return tile_rows > kByRowTileRows ? kSplitCost : 0; }

// Blocks that fit on a multiprocessor at once, by their registers.
constexpr int32_t AttentionBlocksPerMultiprocessor(int32_t tile_rows) { return tile_rows == 16 ? 3 : 2; }

// Shared memory of a block of attention.cu: its rows' queries, and the stages of keys and of values.
constexpr int32_t AttentionSharedBytes(int32_t head_dim, int32_t tile_rows) {
  return (tile_rows + 2 * kAttentionStages * kKeyTile) * head_dim * 2;
}
// The same of attention_by_row.cu: queries for sinks besides, and 16 bytes of what each row sees. Over
// quantised pages it takes less.
constexpr int32_t AttentionByRowSharedBytes(int32_t head_dim) {
  return AttentionSharedBytes(head_dim, 2 * kByRowTileRows) + kByRowTileRows * 16;
}

// Whether kWideTileRows has kernels for such heads: sums, scores and queries of 32 rows a warp are 160 of a
// thread's 255 registers here, at the next wider head 208.
constexpr bool HasWideTile(int32_t head_dim) { return head_dim == 64; }

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

// The same where sequences share: each is in two parts more than it would be, and tiles of sharers are items,
// too. No window: nothing lies before what is shared.
constexpr int32_t SharingItemBound(int32_t item_bound, int32_t sequences, int32_t window) {
  return item_bound + (window > 0 ? 2 : 1) * (sequences < kMostSharers ? sequences : kMostSharers);
}

// A split of shared keys has a slot for each of the sequences of its tile.
constexpr int32_t SharingPartialBound(int32_t kv_heads, int32_t target_blocks, int32_t group,
                                      int32_t sequences) {
  const int32_t of_a_split = SharersOfTile(group) > 2 ? SharersOfTile(group) : 2;
  return of_a_split * AttentionBlocks(kv_heads, target_blocks) +
         3 * (sequences < kMostSharers ? sequences : kMostSharers);
}

constexpr int32_t SharingMergeBound(int32_t merge_bound, int32_t sequences) {
  return merge_bound + (sequences < kMostSharers ? sequences : kMostSharers);
}

// Counts of parts that can never be exceeded, of so many kv heads or fewer, of sharers or not: one for each
// merge and kv head.
constexpr int64_t AttentionCountBound(int32_t kv_heads, int32_t target_blocks, int32_t sequences) {
  return (target_blocks > kv_heads ? target_blocks : kv_heads) +
         int64_t{kv_heads} * SharingMergeBound(0, sequences);
}

// Key tiles of a kv head that hold kLeastBytesSaved.
constexpr int32_t LeastTilesSaved(int32_t kv_heads, int64_t key_and_value_bytes) {
  const int64_t tile = kv_heads * kKeyTile * key_and_value_bytes;
  return static_cast<int32_t>((kLeastBytesSaved + tile - 1) / tile);
}

// Tiles of rows that are split: each has two partial slots at least. `keys` of any tile at most, where that
// is known: too few of them are never split, and nothing has to be joined.
constexpr int32_t AttentionMergeBound(int32_t kv_heads, int32_t target_blocks, int64_t keys) {
  return keys <= int64_t{kKeyTile} * kMinSplitTiles ? 0 : AttentionBlocks(kv_heads, target_blocks);
}

// Keys between the begin of a tile of rows' first key tile and its last key, at most. No window: no bound.
constexpr int64_t AttentionKeyBound(int32_t window, int32_t group, int32_t tile_rows) {
  const int64_t tokens = (tile_rows - 1) / group + 2;  // that rows of one tile belong to
  return window > 0 ? window + tokens - 1 + kKeyTile - 1 : INT64_MAX;
}

// The host twins of the plan kernel and of that which finds sharers: the same lists, from host pointers.
void PlanAttentionOnHost(const AttentionPlanParams& params);
void FindAttentionSharersOnHost(const AttentionSharersParams& params);

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
  const AttentionShare* shares;  // [batch], where sequences share
  float* partial_out;            // [partials, kv_heads, tile_rows, head_dim] f32, normalised
  float* partial_lse;            // [partials, kv_heads, tile_rows] base 2
  // Parts that are done, zeros before a call and after it: [merges, kv_heads] of AttentionCountBound, of
  // Hopper's prefill two for each, since either half of a tile's rows is counted for itself.
  int32_t* parts_done;
  float* lse;  // [tokens, query_heads] base 2, or null
  int32_t window;
  int32_t group;
  int32_t tile_rows;
  int32_t max_items;
  float scale;             // > 0
  DevicePages pages = {};  // of kv; set by RunAttention and RunAttentionByRow
};

// Attention whose rows see other keys than their positions and the window say, or whose pages are quantised.
struct AttentionByRowParams {
  AttentionRunParams run;  // bf16, or quantised pages; tile_rows is kByRowTileRows
  AttentionSinks sinks;    // bf16 queries; len null: none
  AttentionMaskView mask;  // bits null: no sequence has one
  CodedRows coded = {};    // set by RunAttentionByRow
};

// Queue a launch on `stream` (a cudaStream_t). 0 or the runtime's error. REQUIRES: AttentionSupported.
int FindAttentionSharers(const AttentionSharersParams& params, void* stream);
int PlanAttention(const AttentionPlanParams& params, void* stream);
int RunAttention(const AttentionRunParams& params, void* stream);
int RunAttentionByRow(const AttentionByRowParams& params, void* stream);

constexpr bool AttentionSupported(DType dtype, int32_t head_dim, int32_t group) {
  return dtype != DType::kF32 && (head_dim == 32 || head_dim == 64 || head_dim == 96 || head_dim == 128) &&
         group >= 1 && group <= 16;
}

}  // namespace tramontane::cuda
