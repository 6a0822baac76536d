// The work list of an attention call, made on the device, so that the host need not know the lengths.
//
// Shapes: 3 integers a sequence in; AttentionItem [items], AttentionMerge [merges], AttentionWork [1] out.
// Grid:   one block of 256 threads. For the split length a thread takes every 256th sequence; for the lists
//         it owns a run of neighbouring ones, placed by a prefix sum over the threads.
// Bytes:  read 12 a sequence, four times; written 20 an item, 16 a merge, 16 once.
//         By row: 4 more a sequence where masks decide, and 4 a tile of rows where rows have a `left`.
//         Microseconds; run once a step per window, used by all its layers.
// Limits: any batch; lists bounded by AttentionItemBound.
// Idea:   FlashAttention-3's device-side split planner, but counting only keys inside the window.
//
// The plan: rows of a sequence fall into tiles of tile_rows; a tile sees the keys from the first visible to
// its last row's own position. By row the first visible is also not before its `left`; sinks have no items:
// who takes the first keys of a tile takes them too. All tiles share one split length, the least (in key
// tiles, at least kMinSplitTiles) for which all blocks together number about target_blocks; so the list
// depends on the lengths alone.
#include "kernels/cuda/attention_plan.cuh"

namespace tramontane::cuda {

namespace {

constexpr int kPlanThreads = 256;

template <bool kByRow>
TM_DEVICE void PlanBlock(const AttentionPlanParams& p) {
  auto* shared = reinterpret_cast<Totals*>(SharedBytes());  // [kPlanThreads]
  const int thread = ThreadX();

  // All key tiles, for the split length.
  Totals mine;
  for (int b = thread; b < p.batch; b += kPlanThreads)
    mine.tiles += CountSequence<DeviceMemory, kByRow>(p, b, 1).tiles;
  shared[thread] = mine;
  SyncThreads();
  int all_tiles = 0;
  for (int i = 0; i < kPlanThreads; ++i) all_tiles += shared[i].tiles;
  SyncThreads();
  const int split_tiles = SplitLength(p, all_tiles);

  // A thread owns a run of neighbouring sequences, so that the lists are in the order of the batch.
  const int run = (p.batch + kPlanThreads - 1) / kPlanThreads;
  const int begin = Min(thread * run, p.batch), end = Min(begin + run, p.batch);
  mine = {};
  for (int b = begin; b < end; ++b) {
    const Totals t = CountSequence<DeviceMemory, kByRow>(p, b, split_tiles);
    mine.items += t.items;
    mine.merges += t.merges;
    mine.partials += t.partials;
  }
  shared[thread] = mine;
  SyncThreads();
  Totals at;
  for (int i = 0; i < thread; ++i) {
    at.items += shared[i].items;
    at.merges += shared[i].merges;
    at.partials += shared[i].partials;
  }
  if (thread == kPlanThreads - 1) {
    StoreGlobal(p.work, AttentionWork{at.items + mine.items, at.merges + mine.merges,
                                      at.partials + mine.partials, split_tiles});
  }
  for (int b = begin; b < end; ++b) {
    const Totals t = CountSequence<DeviceMemory, kByRow>(p, b, split_tiles);
    FillSequence<DeviceMemory, kByRow>(p, b, split_tiles, at);
    at.items += t.items;
    at.merges += t.merges;
    at.partials += t.partials;
  }
}

template <bool kByRow>
void PlanOnHost(const AttentionPlanParams& params) {
  int tiles = 0;
  for (int b = 0; b < params.batch; ++b) tiles += CountSequence<HostMemory, kByRow>(params, b, 1).tiles;
  const int split_tiles = SplitLength(params, tiles);
  Totals at;
  for (int b = 0; b < params.batch; ++b) {
    const Totals own = CountSequence<HostMemory, kByRow>(params, b, split_tiles);
    FillSequence<HostMemory, kByRow>(params, b, split_tiles, at);
    at.items += own.items;
    at.merges += own.merges;
    at.partials += own.partials;
  }
  *params.work = {at.items, at.merges, at.partials, split_tiles};
}

bool IsByRow(const AttentionPlanParams& params) { return params.left != nullptr || params.by_mask; }

}  // namespace

TM_KERNEL void PlanAttentionKernel(AttentionPlanParams p) {
  AwaitPriorKernels();
  PlanBlock<false>(p);
}

TM_KERNEL void PlanAttentionByRowKernel(AttentionPlanParams p) {
  AwaitPriorKernels();
  PlanBlock<true>(p);
}

int PlanAttention(const AttentionPlanParams& params, void* stream) {
  constexpr size_t kShared = kPlanThreads * sizeof(Totals);
  return IsByRow(params) ? TM_LAUNCH(PlanAttentionByRowKernel, Dim3(), Dim3{kPlanThreads}, kShared,
                                     static_cast<Stream>(stream), params)
                         : TM_LAUNCH(PlanAttentionKernel, Dim3(), Dim3{kPlanThreads}, kShared,
                                     static_cast<Stream>(stream), params);
}

void PlanAttentionOnHost(const AttentionPlanParams& params) {
  IsByRow(params) ? PlanOnHost<true>(params) : PlanOnHost<false>(params);
}

}  // namespace tramontane::cuda
