// The work list of an attention call, made on the device, so that the host need not know the lengths.
//
// Shapes: 3 integers a sequence in; AttentionItem [items], AttentionMerge [merges], AttentionWork [1] out.
// Grid:   one block of 256 threads. All tiles of rows, in the order of the list, are dealt to them in runs as
//         long as each other, so that a thread has a few tiles of a long prompt, or a few sequences of a
//         large batch; what each adds is placed by prefix sums over the lanes and warps.
// Bytes:  read 12 a sequence; 12 for the first tile that a thread has, and 12 for each sequence that it has
//         tiles of, three times; written 24 an item, 16 a merge, 16 once.
//         Where sequences may share: read 16 more a tile of rows, three times; written 8 for each sequence
//         that does.
//         By row: 4 more where masks decide, for what is read three times, and 4 a tile of rows, three times,
//         where rows have a `left`.
//         Of more than 256 sequences a thread reads 12 for each that it passes over on its way to its first.
//         Microseconds; run once a step per window, used by all its layers.
// Limits: any batch; lists bounded by AttentionItemBound.
// Idea:   FlashAttention-3's device-side split planner, but counting only keys inside the window.
//
// The plan: rows of a sequence fall into tiles of tile_rows; a tile sees the keys from the first visible to
// its last row's own position. By row the first visible is also not before its `left`; sinks have no items:
// who takes the first keys of a tile takes them too. All tiles share one split length, the least (in key
// tiles, at least kMinSplitTiles) for which all blocks together number about target_blocks, and those that
// have little more are not split (SplitCost); the splits of a tile are as even as it allows. The longest
// items come first, by classes of an eighth of the longest, which the split length may exceed by far. So the
// list depends on the lengths alone.
#include "kernels/cuda/attention_plan.cuh"

#include <utility>

namespace tramontane::cuda {

namespace {

constexpr int kPlanThreads = 256;
constexpr int kPlanWarps = kPlanThreads / 32;
constexpr int kPlanCounts = kLengthClasses * kPlanThreads;
constexpr size_t kPlanShared = kPlanWarps * sizeof(uint64_t) + (kPlanCounts + kPlanThreads) * sizeof(int);

// Sums over the threads of the block.
struct Scanned {
  uint64_t before;  // of the threads before this one
  uint64_t all;
};

TM_DEVICE Scanned ScanBlock(uint64_t value, uint64_t* warp_sums) {
  const int warp = ThreadX() / 32;
  uint64_t sum = value;  // with the lanes below
  TM_UNROLL
  for (int delta = 1; delta < 32; delta *= 2) {
    const uint64_t below = ShuffleUp(sum, delta);
    if (LaneId() >= delta) sum += below;
  }
  SyncThreads();  // of an earlier scan
  if (LaneId() == 31) warp_sums[warp] = sum;
  SyncThreads();
  Scanned scanned = {sum - value, 0};
  TM_UNROLL
  for (int w = 0; w < kPlanWarps; ++w) {
    if (w < warp) scanned.before += warp_sums[w];
    scanned.all += warp_sums[w];
  }
  return scanned;
}

// The most that a thread of the block has.
TM_DEVICE int MostOfBlock(int value, uint64_t* warp_values) {
  auto most = static_cast<uint64_t>(value);
  TM_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) {
    const uint64_t other = ShuffleXor(most, mask);
    if (other > most) most = other;
  }
  SyncThreads();  // of a scan before
  if (LaneId() == 0) warp_values[ThreadX() / 32] = most;
  SyncThreads();
  TM_UNROLL
  for (int w = 0; w < kPlanWarps; ++w) {
    if (warp_values[w] > most) most = warp_values[w];
  }
  return static_cast<int>(most);
}

// Neighbouring tiles of rows: `count` of them from number `number` of a sequence on.
struct DealtTiles {
  int sequence, number;
  int count;
};

// The tiles of this thread: those of all sequences one after the other are cut into even runs.
TM_DEVICE DealtTiles DealTiles(const AttentionPlanParams& p, uint64_t* warp_sums, int* before) {
  // A thread counts the tiles of neighbouring sequences.
  const int sequences = (p.batch + kPlanThreads - 1) / kPlanThreads;
  const int end = Min((ThreadX() + 1) * sequences, p.batch);
  int tiles = 0;
  TM_ROLLED
  for (int b = ThreadX() * sequences; b < end; ++b)
    tiles += RowTilesOf(p, ReadRow<DeviceMemory, false>(p, b));
  const Scanned counted = ScanBlock(static_cast<uint64_t>(tiles), warp_sums);
  before[ThreadX()] = static_cast<int>(counted.before);
  SyncThreads();

  const auto all = static_cast<int>(counted.all);
  const int of_a_thread = (all + kPlanThreads - 1) / kPlanThreads;
  const int first = Min(ThreadX() * of_a_thread, all);
  DealtTiles dealt = {0, 0, Min(of_a_thread, all - first)};
  if (dealt.count == 0) return dealt;
  // The last thread that has counted no more than `first` before its own counted that tile.
  int counter = 0;
  TM_UNROLL
  for (int step = kPlanThreads / 2; step > 0; step /= 2)
    counter += before[counter + step] <= first ? step : 0;
  dealt.sequence = counter * sequences;
  dealt.number = first - before[counter];
  while (true) {
    const int passed = RowTilesOf(p, ReadRow<DeviceMemory, false>(p, dealt.sequence));
    if (dealt.number < passed) return dealt;
    dealt.number -= passed;
    ++dealt.sequence;
  }
}

// Calls visit(RowTile) for each. A thread has few, so that loops are short code rather than fast.
template <bool kByRow, typename Visit>
TM_DEVICE void ForEachTile(const AttentionPlanParams& p, const DealtTiles& dealt, const Visit& visit) {
  int number = dealt.number, left = dealt.count;
  TM_ROLLED
  for (int b = dealt.sequence; left > 0; ++b) {
    const PlanRow row = ReadRow<DeviceMemory, kByRow>(p, b);
    const int tiles = RowTilesOf(p, row), end = Min(tiles, number + left);
    left -= end - number;
    TM_ROLLED
    for (; number < end; ++number) visit(TileOf(p, b, row, tiles, number));
    number = 0;
  }
}

template <bool kByRow>
TM_DEVICE void PlanBlock(const AttentionPlanParams& p) {
  auto* const warp_sums = reinterpret_cast<uint64_t*>(SharedBytes());
  auto* const counts = reinterpret_cast<int*>(warp_sums + kPlanWarps);  // [kLengthClasses][kPlanThreads]
  const int thread = ThreadX();
  const DealtTiles dealt = DealTiles(p, warp_sums, counts + kPlanCounts);

  // All key tiles, and the most of a tile of rows.
  int tiles = 0, most = 0;
  ForEachTile<kByRow>(p, dealt, [&](const RowTile& tile) {
    const int own = CountKeyTiles<DeviceMemory, kByRow>(p, tile);
    tiles += own;
    most = Max(most, own);
  });
  const auto all_tiles = static_cast<int>(ScanBlock(static_cast<uint64_t>(tiles), warp_sums).all);
  const PlanLengths lengths = LengthsFor(p, all_tiles, MostOfBlock(most, warp_sums));

  const ClassCounts items = {counts + thread, kPlanThreads};
  Totals own;
  TM_UNROLL
  for (int c = 0; c < kLengthClasses; ++c) items[c] = 0;
  ForEachTile<kByRow>(
      p, dealt, [&](const RowTile& tile) { CountTile<DeviceMemory, kByRow>(p, tile, lengths, items, &own); });
  const Scanned lists =
      ScanBlock(static_cast<uint64_t>(own.merges) << 32 | static_cast<uint64_t>(own.partials), warp_sums);

  // Where each thread's items of each class begin: a thread sums as many neighbouring counts as there are
  // classes. The scan before has waited for all counts.
  int* const mine = counts + thread * kLengthClasses;
  int sum = 0;
  TM_UNROLL
  for (int i = 0; i < kLengthClasses; ++i) sum += mine[i];
  const Scanned places = ScanBlock(static_cast<uint64_t>(sum), warp_sums);
  auto place = static_cast<int>(places.before);
  TM_UNROLL
  for (int i = 0; i < kLengthClasses; ++i) {
    const int count = mine[i];
    mine[i] = place;
    place += count;
  }
  SyncThreads();

  if (thread == 0) {
    StoreGlobal(p.work, AttentionWork{static_cast<int>(places.all), static_cast<int>(lists.all >> 32),
                                      static_cast<int>(lists.all & 0xffffffffu), lengths.split});
  }
  Totals next = {static_cast<int>(lists.before >> 32), static_cast<int>(lists.before & 0xffffffffu)};
  ForEachTile<kByRow>(
      p, dealt, [&](const RowTile& tile) { FillTile<DeviceMemory, kByRow>(p, tile, lengths, items, &next); });
}

template <bool kByRow, typename Visit>
void ForEachTileOnHost(const AttentionPlanParams& params, const Visit& visit) {
  for (int b = 0; b < params.batch; ++b) {
    const PlanRow row = ReadRow<HostMemory, kByRow>(params, b);
    const int tiles = RowTilesOf(params, row);
    for (int number = 0; number < tiles; ++number) visit(TileOf(params, b, row, tiles, number));
  }
}

template <bool kByRow>
void PlanOnHost(const AttentionPlanParams& params) {
  int tiles = 0, most = 0;
  ForEachTileOnHost<kByRow>(params, [&](const RowTile& tile) {
    const int own = CountKeyTiles<HostMemory, kByRow>(params, tile);
    tiles += own;
    most = Max(most, own);
  });
  const PlanLengths lengths = LengthsFor(params, tiles, most);
  int counts[kLengthClasses] = {};
  const ClassCounts items = {counts, 1};
  Totals all, next;
  ForEachTileOnHost<kByRow>(params, [&](const RowTile& tile) {
    CountTile<HostMemory, kByRow>(params, tile, lengths, items, &all);
  });
  int place = 0;
  for (int& count : counts) place += std::exchange(count, place);
  ForEachTileOnHost<kByRow>(params, [&](const RowTile& tile) {
    FillTile<HostMemory, kByRow>(params, tile, lengths, items, &next);
  });
  *params.work = {place, all.merges, all.partials, lengths.split};
}

bool IsByRow(const AttentionPlanParams& params) { return params.left != nullptr || params.by_mask; }

}  // namespace

TM_KERNEL TM_BOUNDS(kPlanThreads) void PlanAttentionKernel(AttentionPlanParams p) {
  AwaitPriorKernels();
  PlanBlock<false>(p);
}

TM_KERNEL TM_BOUNDS(kPlanThreads) void PlanAttentionByRowKernel(AttentionPlanParams p) {
  AwaitPriorKernels();
  PlanBlock<true>(p);
}

int PlanAttention(const AttentionPlanParams& params, void* stream) {
  return IsByRow(params) ? TM_LAUNCH(PlanAttentionByRowKernel, Dim3(), Dim3{kPlanThreads}, kPlanShared,
                                     static_cast<Stream>(stream), params)
                         : TM_LAUNCH(PlanAttentionKernel, Dim3(), Dim3{kPlanThreads}, kPlanShared,
                                     static_cast<Stream>(stream), params);
}

void PlanAttentionOnHost(const AttentionPlanParams& params) {
  IsByRow(params) ? PlanOnHost<true>(params) : PlanOnHost<false>(params);
}

}  // namespace tramontane::cuda
