// What a tile of rows adds to the work list of an attention call: the arithmetic of attention_plan.cu,
// written once for the kernel and its host twin. `Memory` says how integers are read and entries written;
// `kByRow` whether rows see other keys than those of the window.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

// On the device: the counted primitives. On the host: plain memory.
struct DeviceMemory {
  template <typename T>
  TM_DEVICE static T Load(const T* address) {
    return LoadGlobal(address);
  }
  template <typename T>
  TM_DEVICE static void Store(T* address, const T& value) {
    StoreGlobal(address, value);
  }
};
struct HostMemory {
  template <typename T>
  TM_HOST_DEVICE static T Load(const T* address) {
    return *address;
  }
  template <typename T>
  TM_HOST_DEVICE static void Store(T* address, const T& value) {
    *address = value;
  }
};

// The lengths of one sequence.
struct PlanRow {
  int kv_base;      // 0 where it is not asked for: masks alone go by it
  int kv_end;       // position after its last key
  int first_token;  // row of its first query
  int tokens;       // queries: the last ones before kv_end
};

template <typename Memory, bool kByRow>
TM_HOST_DEVICE PlanRow ReadRow(const AttentionPlanParams& p, int b) {
  const int kv_base = kByRow && p.by_mask ? Memory::Load(p.kv_base + b) : 0;
  const int first_token = Memory::Load(p.qo_indptr + b);
  return {kv_base, Memory::Load(p.kv_end + b), first_token, Memory::Load(p.qo_indptr + b + 1) - first_token};
}

// The keys that rows [row_begin, row_begin + tile_rows) see: [begin, end), begin rounded down to a key tile.
struct KeyRange {
  int begin, end;
};

template <typename Memory, bool kByRow>
TM_HOST_DEVICE KeyRange KeysOf(const AttentionPlanParams& p, const PlanRow& row, int row_begin) {
  if (kByRow && p.by_mask) return {row.kv_base / kKeyTile * kKeyTile, row.kv_end};
  const int first_token = row_begin / p.group;
  const int last_token = Min(row_begin + p.tile_rows, row.tokens * p.group) - 1;
  const int first_position = row.kv_end - row.tokens + first_token;
  auto begin = static_cast<int>(FirstVisible(first_position, p.window));
  // `left` ascends, and so it is the least of the tile.
  if (kByRow && p.left != nullptr) begin = Max(begin, Memory::Load(p.left + row.first_token + first_token));
  return {begin / kKeyTile * kKeyTile, row.kv_end - row.tokens + last_token / p.group + 1};
}

TM_HOST_DEVICE int TilesOf(const KeyRange& keys) { return (keys.end - keys.begin + kKeyTile - 1) / kKeyTile; }

// What all tiles of rows are split by.
struct PlanLengths {
  int split;    // key tiles of a split, at most
  int whole;    // so many or fewer are not split
  int longest;  // key tiles of any item, at most
};

// At least one, who writes the zeros of rows that see no key.
TM_HOST_DEVICE int SplitsOf(int tiles, const PlanLengths& lengths) {
  return tiles <= lengths.whole ? 1 : (tiles + lengths.split - 1) / lengths.split;
}

// Key tiles of each split but the last: as even as whole tiles allow.
TM_HOST_DEVICE int LengthOf(int tiles, int splits) { return (tiles + splits - 1) / splits; }

// Items begin in the order of their list, and what begins last should end soon: so they stand by classes of
// length, longest first, and within a class in the order of the batch, a sequence's last rows before its
// first.
inline constexpr int kLengthClasses = 8;
TM_HOST_DEVICE int LengthClass(int length, const PlanLengths& lengths) {
  return (lengths.longest - length) * kLengthClasses / (lengths.longest + 1);
}

// Of each class a number, `stride` apart.
struct ClassCounts {
  int* count;
  int stride;
  TM_HOST_DEVICE int& operator[](int length_class) const { return count[length_class * stride]; }
};

// Merges and partials of sequences under a split length.
struct Totals {
  int merges = 0, partials = 0;
};

// Tiles of rows that a sequence has; of sharers it has one.
TM_HOST_DEVICE int RowTilesOf(const AttentionPlanParams& p, const PlanRow& row) {
  return (row.tokens * p.group + p.tile_rows - 1) / p.tile_rows;
}

struct RowTile {
  int sequence;
  PlanRow row;
  int row_begin;
};
// Number `number` of a sequence's `tiles`, in the order of the list: its last rows before its first.
TM_HOST_DEVICE RowTile TileOf(const AttentionPlanParams& p, int b, const PlanRow& row, int tiles,
                              int number) {
  return {b, row, (tiles - 1 - number) * p.tile_rows};
}

// A sequence of sharers: the keys that it has for itself, before and behind those that are shared, and these.
struct SharingRow {
  AttentionSharers with;
  KeyRange before, shared, behind;

  TM_HOST_DEVICE bool leads(int b) const { return with.first == b; }
  TM_HOST_DEVICE int row_tiles(int group) const {
    return (with.count + SharersOfTile(group) - 1) / SharersOfTile(group);
  }
};

// Of nobody where nothing is shared.
template <typename Memory>
TM_HOST_DEVICE AttentionSharers SharersWith(const AttentionPlanParams& p, int b) {
  return p.sharers == nullptr ? AttentionSharers{b, 0, 0, 0} : Memory::Load(p.sharers + b);
}

template <typename Memory>
TM_HOST_DEVICE SharingRow SharingRowOf(const AttentionPlanParams& p, const AttentionSharers& with,
                                       const PlanRow& row) {
  const KeyRange keys = KeysOf<Memory, false>(p, row, 0);
  return {with, {keys.begin, with.begin}, {with.begin, with.end}, {with.end, keys.end}};
}

// Of keys of which there may be none.
TM_HOST_DEVICE int SplitsOfPart(const KeyRange& keys, const PlanLengths& lengths) {
  const int tiles = TilesOf(keys);
  return tiles == 0 ? 0 : SplitsOf(tiles, lengths);
}

TM_HOST_DEVICE void CountPart(const KeyRange& keys, int row_tiles, const PlanLengths& lengths,
                              ClassCounts items) {
  const int splits = SplitsOfPart(keys, lengths);
  if (splits > 0) items[LengthClass(LengthOf(TilesOf(keys), splits), lengths)] += splits * row_tiles;
}

TM_HOST_DEVICE void CountSharing(const AttentionPlanParams& p, const SharingRow& row, int b,
                                 const PlanLengths& lengths, ClassCounts items, Totals* totals) {
  CountPart(row.before, 1, lengths, items);
  CountPart(row.behind, 1, lengths, items);
  if (row.leads(b)) CountPart(row.shared, row.row_tiles(p.group), lengths, items);
  totals->merges += 1;
  totals->partials += SplitsOfPart(row.before, lengths) + SplitsOfPart(row.shared, lengths) +
                      SplitsOfPart(row.behind, lengths);
}

// Calls put(place in the list, split, its keys) for each item of some keys, of which a split has `row_tiles`.
template <typename Put>
TM_HOST_DEVICE void FillPart(const KeyRange& keys, int row_tiles, const PlanLengths& lengths,
                             ClassCounts next_item, const Put& put) {
  const int splits = SplitsOfPart(keys, lengths);
  if (splits == 0) return;
  const int length = LengthOf(TilesOf(keys), splits);
  int& item = next_item[LengthClass(length, lengths)];
  for (int s = 0; s < splits; ++s) {
    const int begin = keys.begin + s * length * kKeyTile;
    put(item, s, KeyRange{begin, Min(begin + length * kKeyTile, keys.end)});
    item += row_tiles;
  }
}

template <typename Memory>
TM_HOST_DEVICE void FillSharing(const AttentionPlanParams& p, const SharingRow& row, int b,
                                const PlanLengths& lengths, ClassCounts next_item, Totals* next) {
  const int first = next->partials, shared = first + SplitsOfPart(row.before, lengths);
  const int behind = shared + SplitsOfPart(row.shared, lengths);
  next->partials = behind + SplitsOfPart(row.behind, lengths);
  const int merge = next->merges++;
  Memory::Store(p.merges + merge, AttentionMerge{b, 0, first, next->partials - first});
  Memory::Store(p.shares + b, AttentionShare{shared, merge});
  FillPart(row.before, 1, lengths, next_item, [&](int item, int split, const KeyRange& keys) {
    Memory::Store(p.items + item, AttentionItem{b, 0, keys.begin, keys.end, first + split, merge});
  });
  FillPart(row.behind, 1, lengths, next_item, [&](int item, int split, const KeyRange& keys) {
    Memory::Store(p.items + item, AttentionItem{b, 0, keys.begin, keys.end, behind + split, merge});
  });
  if (!row.leads(b)) return;
  const int row_tiles = row.row_tiles(p.group), members = SharersOfTile(p.group);
  FillPart(row.shared, row_tiles, lengths, next_item, [&](int item, int split, const KeyRange& keys) {
    for (int t = 0; t < row_tiles; ++t) {
      const int partial = OfSharers(split, Min(members, row.with.count - t * members));
      Memory::Store(p.items + item + t, AttentionItem{b + t * members, 0, keys.begin, keys.end, partial, -1});
    }
  });
}

template <typename Memory, bool kByRow>
TM_HOST_DEVICE int CountKeyTiles(const AttentionPlanParams& p, const RowTile& tile) {
  const int b = tile.sequence;
  if (const AttentionSharers with = SharersWith<Memory>(p, b); !kByRow && with.count > 0) {
    const SharingRow row = SharingRowOf<Memory>(p, with, tile.row);
    return TilesOf(row.before) + TilesOf(row.behind) +
           (row.leads(b) ? row.row_tiles(p.group) * TilesOf(row.shared) : 0);
  }
  return TilesOf(KeysOf<Memory, kByRow>(p, tile.row, tile.row_begin));
}

// Adds the items of a tile of rows to those of their classes, its merges and partials to `totals`.
template <typename Memory, bool kByRow>
TM_HOST_DEVICE void CountTile(const AttentionPlanParams& p, const RowTile& tile, const PlanLengths& lengths,
                              ClassCounts items, Totals* totals) {
  const int b = tile.sequence;
  if (const AttentionSharers with = SharersWith<Memory>(p, b); !kByRow && with.count > 0) {
    return CountSharing(p, SharingRowOf<Memory>(p, with, tile.row), b, lengths, items, totals);
  }
  const int tiles = TilesOf(KeysOf<Memory, kByRow>(p, tile.row, tile.row_begin));
  const int splits = SplitsOf(tiles, lengths);
  items[LengthClass(LengthOf(tiles, splits), lengths)] += splits;
  totals->merges += splits > 1 ? 1 : 0;
  totals->partials += splits > 1 ? splits : 0;
}

// Writes the items of a tile of rows to where their classes have come, its merges and partials to `next`, and
// counts all of them on.
template <typename Memory, bool kByRow>
TM_HOST_DEVICE void FillTile(const AttentionPlanParams& p, const RowTile& tile, const PlanLengths& lengths,
                             ClassCounts next_item, Totals* next) {
  const int b = tile.sequence, r = tile.row_begin;
  if (const AttentionSharers with = SharersWith<Memory>(p, b); !kByRow && with.count > 0) {
    return FillSharing<Memory>(p, SharingRowOf<Memory>(p, with, tile.row), b, lengths, next_item, next);
  }
  const KeyRange keys = KeysOf<Memory, kByRow>(p, tile.row, r);
  const int tiles = TilesOf(keys), splits = SplitsOf(tiles, lengths), length = LengthOf(tiles, splits);
  const int merge = splits > 1 ? next->merges++ : -1;
  if (splits > 1) Memory::Store(p.merges + merge, AttentionMerge{b, r, next->partials, splits});
  int& item = next_item[LengthClass(length, lengths)];
  for (int s = 0; s < splits; ++s) {
    const int begin = keys.begin + s * length * kKeyTile;
    Memory::Store(p.items + item++, AttentionItem{b, r, begin, Min(begin + length * kKeyTile, keys.end),
                                                  splits > 1 ? next->partials++ : -1, merge});
  }
}

// For so many key tiles in all (of one kv head), and in one tile of rows at most.
TM_HOST_DEVICE PlanLengths LengthsFor(const AttentionPlanParams& p, int all_tiles, int most_tiles) {
  const int blocks = AttentionBlocks(p.kv_heads, p.target_blocks);
  const int split = Max(kMinSplitTiles, (all_tiles + blocks - 1) / blocks);
  const int whole = split + SplitCost(p.tile_rows);
  return {split, whole, Min(most_tiles, whole)};
}

}  // namespace tramontane::cuda
