// Who shares keys with whom in a decode: found on the device, where page tables lie, so that a recorded step
// finds it anew each time it is replayed.
//
// Shapes: page tables and 2 integers a sequence in; AttentionSharers [batch] out.
// Grid:   one block of 256 threads. A warp takes every eighth pair of neighbours in the batch and compares
//         their tables, 128 entries at a time, up to the first that differs; then one thread makes groups of
//         the pairs.
// Bytes:  read 20 a pair of neighbours, and of pairs that have one query each and see a whole tile of keys 8,
//         8 more where tables are rings, and 8 for each page up to the 128 where they differ; written 16 a
//         sequence. Microseconds; run once a step per window, used by all its layers.
// Limits: the first kMostSharers sequences of a batch.
// Ideas:  Cascade Inference (FlashInfer), Hydragen: a prefix is read once for all that have it. Neighbours
//         alone are compared, since prompts that begin alike mostly stand side by side, or all are alike.
#include "kernels/cuda/attention_plan.cuh"
#include "kernels/cuda/device_pages.cuh"

namespace tramontane::cuda {
namespace {

constexpr int kSharersThreads = 256;
constexpr int kSharersWarps = kSharersThreads / 32;
constexpr int kEntriesOfLane = 4;  // that are under way at once
constexpr size_t kSharersShared = kMostSharers * sizeof(KeyRange);

// What decides which keys a pair of neighbours may share.
struct Neighbours {
  int tokens[2];
  int kv_end[2];
};

// The keys that both see whole, but for the last of either, in whole tiles, if they are in the same pages.
TM_HOST_DEVICE KeyRange KeysOfBoth(const Neighbours& pair, int window) {
  if (pair.tokens[0] != 1 || pair.tokens[1] != 1) return {0, 0};
  const auto first = static_cast<int>(FirstVisible(Max(pair.kv_end[0], pair.kv_end[1]) - 1, window));
  return {(first + kKeyTile - 1) / kKeyTile * kKeyTile,
          (Min(pair.kv_end[0], pair.kv_end[1]) - 1) / kKeyTile * kKeyTile};
}

// Those of them that are, where `page` is the first that differs.
TM_HOST_DEVICE KeyRange KeysBefore(const KeyRange& both, int page, int page_size) {
  return {both.begin, Min(both.end, page * page_size / kKeyTile * kKeyTile)};
}

// Key tiles that so many sharers need not read.
TM_HOST_DEVICE int TilesSaved(const KeyRange& keys, int count, int group) {
  const int row_tiles = (count + SharersOfTile(group) - 1) / SharersOfTile(group);
  return (count - row_tiles) * TilesOf(keys);
}

// Groups from front to back: a sequence joins as long as nothing is lost by it. pairs[b]: what sequences b
// and b + 1 share, of `count` sequences.
template <typename Memory>
TM_HOST_DEVICE void GroupSharers(const AttentionSharersParams& p, const KeyRange* pairs, int count) {
  for (int leader = 0; leader < count;) {
    KeyRange keys = {0, 0};
    int members = 1, saved = 0;
    for (int pair = leader; pair + 1 < count && pairs[pair].begin < pairs[pair].end; ++pair) {
      const KeyRange with = {Max(keys.begin, pairs[pair].begin),
                             members == 1 ? pairs[pair].end : Min(keys.end, pairs[pair].end)};
      const int more = with.begin < with.end ? TilesSaved(with, members + 1, p.group) : 0;
      if (more == 0 || more < saved) break;
      keys = with;
      saved = more;
      ++members;
    }
    // The next two share so much more without it.
    const bool alone =
        members > 1 && leader + 2 < count &&
        pairs[leader + 1].end - pairs[leader + 1].begin > 2 * (pairs[leader].end - pairs[leader].begin);
    if (alone) members = 1;
    const bool shares = members > 1 && saved >= p.least_tiles;
    for (int b = leader; b < leader + members; ++b) {
      Memory::Store(p.sharers + b, shares ? AttentionSharers{leader, members, keys.begin, keys.end}
                                          : AttentionSharers{b, 0, 0, 0});
    }
    leader += members;
  }
}

// The first page of [first, end) for which the tables differ, or `end`. By a warp.
TM_DEVICE int FirstDifference(const PagesOfSequence& a, const PagesOfSequence& b, int first, int end) {
#ifndef __CUDACC__
  if (IsBroken(KvRule::kSharedPages)) return end;
#endif
  for (int page = first; page < end; page += 32 * kEntriesOfLane) {
    int differs = end;
    TM_UNROLL
    for (int i = 0; i < kEntriesOfLane; ++i) {
      const int own = page + i * 32 + LaneId();
      if (own < end && LoadGlobal(a.entries + (own & a.mask)) != LoadGlobal(b.entries + (own & b.mask))) {
        differs = Min(differs, own);
      }
    }
    auto least = static_cast<uint64_t>(differs);
    TM_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) {
      const uint64_t other = ShuffleXor(least, mask);
      least = other < least ? other : least;
    }
    if (least < static_cast<uint64_t>(end)) return static_cast<int>(least);
  }
  return end;
}

// By a warp.
TM_DEVICE PagesOfSequence LoadPagesOfWarp(const PageTableView& table, int b) {
  const int mask = table.page_mask == nullptr ? -1 : LoadTogether<32>(table.page_mask + b);
  return {table.page_indices + LoadTogether<32>(table.first_entry + b), mask};
}

}  // namespace

TM_KERNEL TM_BOUNDS(kSharersThreads) void FindAttentionSharersKernel(AttentionSharersParams p) {
  AwaitPriorKernels();
  auto* const pairs = reinterpret_cast<KeyRange*>(SharedBytes());  // [kMostSharers]
  const int count = Min(p.batch, kMostSharers);
  for (int b = ThreadX() / 32; b + 1 < count; b += kSharersWarps) {
    const int query = LoadTogether<32>(p.qo_indptr + b), next = LoadTogether<32>(p.qo_indptr + b + 1);
    const int end = LoadTogether<32>(p.qo_indptr + b + 2);
    const Neighbours pair = {
        {next - query, end - next},
        {LoadTogether<32>(p.table.kv_end + b), LoadTogether<32>(p.table.kv_end + b + 1)}};
    KeyRange keys = KeysOfBoth(pair, p.window);
    if (keys.begin < keys.end) {
      const int differs = FirstDifference(LoadPagesOfWarp(p.table, b), LoadPagesOfWarp(p.table, b + 1),
                                          static_cast<int>(PageOf(keys.begin, 0, p.page_size)),
                                          static_cast<int>(PagesFor(keys.end, p.page_size)));
      keys = KeysBefore(keys, differs, p.page_size);
    }
    if (LaneId() == 0) pairs[b] = keys;
  }
  SyncThreads();
  if (ThreadX() == 0) GroupSharers<DeviceMemory>(p, pairs, count);
  for (int b = count + ThreadX(); b < p.batch; b += kSharersThreads) {
    StoreGlobal(p.sharers + b, AttentionSharers{b, 0, 0, 0});
  }
}

int FindAttentionSharers(const AttentionSharersParams& params, void* stream) {
  return TM_LAUNCH(FindAttentionSharersKernel, Dim3(), Dim3{kSharersThreads}, kSharersShared,
                   static_cast<Stream>(stream), params);
}

void FindAttentionSharersOnHost(const AttentionSharersParams& p) {
  KeyRange pairs[kMostSharers] = {};
  const int count = Min(p.batch, kMostSharers);
  for (int b = 0; b + 1 < count; ++b) {
    const Neighbours pair = {{p.qo_indptr[b + 1] - p.qo_indptr[b], p.qo_indptr[b + 2] - p.qo_indptr[b + 1]},
                             {p.table.kv_end[b], p.table.kv_end[b + 1]}};
    pairs[b] = KeysOfBoth(pair, p.window);
    const PagesOfSequence one = PagesOf(p.table, b), other = PagesOf(p.table, b + 1);
    auto page = static_cast<int>(PageOf(pairs[b].begin, 0, p.page_size));
    while (page * p.page_size < pairs[b].end && one[page] == other[page]) ++page;
    pairs[b] = KeysBefore(pairs[b], page, p.page_size);
  }
  GroupSharers<HostMemory>(p, pairs, count);
  for (int b = count; b < p.batch; ++b) p.sharers[b] = {b, 0, 0, 0};
}

}  // namespace tramontane::cuda
