// The work list of an attention call, made on the device, so that the host need not know the lengths.
//
// Shapes: 3 integers a sequence in; AttentionItem [items], AttentionMerge [merges], AttentionWork [1] out.
// Grid:   one block of 256 threads. For the split length a thread takes every 256th sequence; for the lists
//         it owns a run of neighbouring ones, placed by prefix sums over the lanes and warps.
// Bytes:  read 12 a sequence, three times; written 24 an item, 16 a merge, 16 once.
//         Where sequences may share: read 16 more a sequence, three times; written 8 for each that does.
//         By row: 4 more a sequence where masks decide, and 4 a tile of rows where rows have a `left`.
//         Microseconds; run once a step per window, used by all its layers.
// Limits: any batch; lists bounded by AttentionItemBound.
// Idea:   FlashAttention-3's device-side split planner, but counting only keys inside the window.
//
// The plan: rows of a sequence fall into tiles of tile_rows; a tile sees the keys from the first visible to
// its last row's own position. By row the first visible is also not before its `left`; sinks have no items:
// who takes the first keys of a tile takes them too. All tiles share one split length, the least (in key
// tiles, at least kMinSplitTiles) for which all blocks together number about target_blocks; the splits of a
// tile are as even as it allows. The longest items come first. So the list depends on the lengths alone.
#include "kernels/cuda/attention_plan.cuh"

#include <utility>

namespace tramontane::cuda {

namespace {

constexpr int kPlanThreads = 256;
constexpr int kPlanWarps = kPlanThreads / 32;
constexpr int kPlanCounts = kLengthClasses * kPlanThreads;
constexpr size_t kPlanShared = kPlanWarps * sizeof(uint64_t) + kPlanCounts * sizeof(int);

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

template <bool kByRow>
TM_DEVICE void PlanBlock(const AttentionPlanParams& p) {
  auto* const warp_sums = reinterpret_cast<uint64_t*>(SharedBytes());
  auto* const counts = reinterpret_cast<int*>(warp_sums + kPlanWarps);  // [kLengthClasses][kPlanThreads]
  const int thread = ThreadX();

  // All key tiles, for the split length.
  int tiles = 0;
  for (int b = thread; b < p.batch; b += kPlanThreads) tiles += CountKeyTiles<DeviceMemory, kByRow>(p, b);
  const auto all_tiles = static_cast<int>(ScanBlock(static_cast<uint64_t>(tiles), warp_sums).all);
  const int split_tiles = SplitLength(p, all_tiles);

  // A thread owns a run of neighbouring sequences, so that the lists are in the order of the batch.
  const int run = (p.batch + kPlanThreads - 1) / kPlanThreads;
  const int begin = Min(thread * run, p.batch), end = Min(begin + run, p.batch);
  const ClassCounts items = {counts + thread, kPlanThreads};
  Totals own;
  TM_UNROLL
  for (int c = 0; c < kLengthClasses; ++c) items[c] = 0;
  for (int b = begin; b < end; ++b) CountSequence<DeviceMemory, kByRow>(p, b, split_tiles, items, &own);
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
                                      static_cast<int>(lists.all & 0xffffffffu), split_tiles});
  }
  Totals next = {static_cast<int>(lists.before >> 32), static_cast<int>(lists.before & 0xffffffffu)};
  for (int b = begin; b < end; ++b) FillSequence<DeviceMemory, kByRow>(p, b, split_tiles, items, &next);
}

template <bool kByRow>
void PlanOnHost(const AttentionPlanParams& params) {
  int tiles = 0;
  for (int b = 0; b < params.batch; ++b) tiles += CountKeyTiles<HostMemory, kByRow>(params, b);
  const int split_tiles = SplitLength(params, tiles);
  int counts[kLengthClasses] = {};
  const ClassCounts items = {counts, 1};
  Totals all, next;
  for (int b = 0; b < params.batch; ++b)
    CountSequence<HostMemory, kByRow>(params, b, split_tiles, items, &all);
  int place = 0;
  for (int& count : counts) place += std::exchange(count, place);
  for (int b = 0; b < params.batch; ++b)
    FillSequence<HostMemory, kByRow>(params, b, split_tiles, items, &next);
  *params.work = {place, all.merges, all.partials, split_tiles};
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
