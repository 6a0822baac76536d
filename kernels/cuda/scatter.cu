// Scatter: numbers of 32 bits, each to a place of its own.
//
// Shapes: pairs [count, 2] (index, value); out as large as the indices say.
// Grid:   (count / 128) blocks of 128 threads, a thread a pair.
// Bytes:  read count * 8, written count * 4.
// Limits: none but the op's.
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

namespace {
constexpr int kScatterThreads = 128;
}

TM_KERNEL TM_BOUNDS(kScatterThreads) void ScatterKernel(ScatterParams p) {
  AwaitPriorKernels();
  const int i = BlockX() * kScatterThreads + ThreadX();
  if (i < p.count) StoreGlobal(p.out + LoadGlobal(p.pairs + 2 * i), LoadGlobal(p.pairs + 2 * i + 1));
}

int LaunchScatter(const ScatterParams& params, void* stream) {
  const auto blocks = static_cast<unsigned>((params.count + kScatterThreads - 1) / kScatterThreads);
  return TM_LAUNCH(ScatterKernel, Dim3{blocks}, Dim3{kScatterThreads}, 0, static_cast<Stream>(stream),
                   params);
}

}  // namespace tramontane::cuda
