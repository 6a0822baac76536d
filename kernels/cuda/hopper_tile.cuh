// What the attention kernels of sm_90a share: which keys an item has, and the warp that fetches them page by
// page. Device side.
//
// Tiles of keys and values lie in shared memory as the TMA unit writes them and wgmma reads them
// (SWIZZLE_128B): [head_dim / 64] parts of [keys][128 bytes].
#pragma once

#include <algorithm>

#include "kernels/cuda/device_pages.cuh"
#include "kernels/cuda/hopper_attention.h"
#include "kernels/cuda/hopper_primitives.cuh"

namespace tramontane::cuda {

inline constexpr float kHopperLog2E = 1.4426950408889634f;
inline constexpr int kBoxRowBytes = 128;  // 64 elements of head_dim
inline constexpr int kNoPage = -1;        // outside of the pool: a box of zeros

// One AttentionItem for one kv head.
struct HopperItem {
  int kv_head;
  int first_token;     // row of the sequence's first query
  int rows;            // its tokens x group
  int row_begin;       // the tile's first
  int first_position;  // of the sequence's first query
  int window;          // 0: none
  int sequence;
  int partial;             // as AttentionItem has it
  int key_begin, key_end;  // positions that some row of the tile sees
  int tile_begin;          // key_begin rounded down to a tile of keys
  PagesOfSequence pages;
};

// Number `work` of the list, kv heads fastest. kShares: it may be of sharers, which see all keys of an item
// and so have no window and stand behind them.
template <int kTileKeys, bool kShares = false>
TM_DEVICE HopperItem ReadItem(const HopperAttentionParams& params, int work) {
  const AttentionRunParams& p = params.run;
  const int number = params.by_kv_heads.Quotient(work);
  const AttentionItem item = LoadUniform(p.items + number);
  HopperItem out;
  out.kv_head = work - number * params.by_kv_heads.size();
  out.first_token = LoadUniform(p.qo_indptr + item.sequence);
  const int members = kShares ? MembersOf(item.partial) : 1;
  const int tokens = LoadUniform(p.qo_indptr + item.sequence + members) - out.first_token;
  out.rows = tokens * p.group;
  out.row_begin = item.row_begin;
  out.window = p.window;
  out.sequence = item.sequence;
  out.partial = item.partial;
  out.pages = LoadPages(p.table, item.sequence);
  out.first_position = LoadUniform(p.table.kv_end + item.sequence) - tokens;
  if (kShares && IsOfSharers(item.partial)) {
    out.window = 0;
    out.first_position = item.key_end;
  }
  const int tile_first = out.first_position + params.by_group.Quotient(item.row_begin);
  out.key_begin = std::max(item.key_begin, static_cast<int>(FirstVisible(tile_first, out.window)));
  out.key_end = item.key_end;
  out.tile_begin = out.key_begin & -kTileKeys;
  return out;
}

// Rows of a tile that were fetched with their page and are not the item's; what they hold is not defined:
// before its first key and behind its last one.
struct StaleRows {
  int before_begin = 0, before_end = 0, behind_begin = 0, behind_end = 0;

  TM_DEVICE bool Any() const { return before_begin < before_end || behind_begin < behind_end; }
};

template <int kTileKeys>
TM_DEVICE StaleRows StaleRowsOf(const HopperItem& item, int tile, int page_log2) {
  const int page = 1 << page_log2;
  StaleRows rows;
  if (item.key_begin >= item.key_end) return rows;
  if (tile < item.key_begin) {
    rows.before_begin = (item.key_begin & -page) - tile;
    rows.before_end = item.key_begin - tile;
  }
  if (tile + kTileKeys > item.key_end) {
    rows.behind_begin = item.key_end - tile;
    rows.behind_end = ((item.key_end + page - 1) & -page) - tile;
  }
  return rows;
}

// The page of the tile that this lane fetches: kNoPage where no row of it is the item's.
template <int kTileKeys>
TM_DEVICE int PageOfLane(const HopperAttentionParams& p, const HopperItem& item, int tile) {
  const int first = tile + (LaneId() << p.page_log2), end = first + (1 << p.page_log2);
  const bool live = LaneId() < kTileKeys >> p.page_log2 && end > item.key_begin && first < item.key_end;
  return live ? FindPage<1>(item.pages, p.run.pages.divisor, first).page : kNoPage;
}

// By the warp that fetches: lane i issues the boxes of the tile's page i. `half` counts keys and values of
// all layers.
template <int kTileKeys, int kHeadDim>
TM_DEVICE void FetchTile(const HopperAttentionParams& p, const HopperItem& item, int page, int half,
                         std::byte* to, Mbarrier* full) {
  constexpr int kPartBytes = kTileKeys * kBoxRowBytes;
  if (LaneId() == 0) ArriveExpecting(full, kTileKeys * kHeadDim * 2);
  SyncWarp();
  if (LaneId() >= kTileKeys >> p.page_log2) return;
  const int row = LaneId() << p.page_log2;
  TM_UNROLL
  for (int part = 0; part < kHeadDim / 64; ++part) {
    LoadBox(to + row * kBoxRowBytes + part * kPartBytes, p.pool, full,
            {part * 64, 0, item.kv_head, half, page});
  }
}

// By a warp: makes rows [begin, end) of a tile of values zero, so that a weight of zero makes nothing of
// them.
template <int kTileKeys, int kHeadDim>
TM_DEVICE void ClearRows(int begin, int end, std::byte* tile) {
  constexpr int kPieces = kHeadDim / 8;  // of 16 bytes, of a row; in what order is all the same
  TM_ROLLED                              // few registers
      for (int i = begin * kPieces + LaneId(); i < end * kPieces; i += 32) {
    const int row = i / kPieces, piece = i % kPieces;
    StoreShared16(tile + piece / 8 * kTileKeys * kBoxRowBytes + row * kBoxRowBytes + piece % 8 * 16, {});
  }
}

// Of a warp whose lanes are done with what the barrier guards.
TM_DEVICE void Release(Mbarrier* barrier) {
  SyncWarp();
  if (LaneId() == 0) Arrive(barrier);
}

}  // namespace tramontane::cuda
