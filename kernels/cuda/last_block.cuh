// How blocks of one launch learn who of them is done last: it goes on with what all of them wrote, and no
// second launch has to. Device side.
//
// What is counted lies in global memory and is zero before the launch. Who counts the last one puts it back
// to zero, so that a recorded step can be replayed. Blocks may come in any order, and one block several
// times.
//
// The fences are those of a grid's barrier in cooperative groups: a block meets, one thread's fence stands
// for all that met, it counts, its second fence stands for what others wrote before they counted, and the
// block meets again. Written and read from then on: LoadGlobalWritten and its like.
// Ideas: threadFenceReduction of the CUDA samples, CUB's decoupled reductions, XQA.
#pragma once

#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

struct DoneCount {
  int32_t* done;  // so many are; global memory
  int32_t all;
};

// By all threads of a block, or those of it that `sync` lets meet, `thread` from 0 on: whatever they wrote is
// done in each of `counts` counts, of which thread i takes count_of(i). Returns in is_last[i], in shared
// memory that nobody uses once they have met, whether it was the last of the i-th.
template <typename CountOf, typename Sync>
TM_DEVICE void CountDone(int thread, int counts, const CountOf& count_of, int32_t* is_last,
                         const Sync& sync) {
  sync();
  if (thread < counts) {
    const DoneCount count = count_of(thread);
    FenceGlobal();
    const bool last = AtomicAddGlobal(count.done, 1) == count.all - 1;
    FenceGlobal();
    if (last) StoreGlobal(count.done, 0);
    is_last[thread] = last ? 1 : 0;
  }
  sync();
}

}  // namespace tramontane::cuda
