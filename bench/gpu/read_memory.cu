// A plain read.
//
// Shapes: from [bytes]; out [threads] u32.
// Grid:   as many blocks as asked, of 256 threads, each thread 16 bytes at a time, eight of them under way.
// Bytes:  read bytes; written threads * 4.
#include "bench/gpu/read_memory.h"

#include "kernels/cuda/primitives.cuh"

namespace tramontane::gpu {
namespace {

using namespace cuda;

constexpr int kThreads = kReadThreads;
constexpr int kUnderWay = 8;

}  // namespace

TM_KERNEL TM_BOUNDS(kThreads) void ReadMemoryKernel(ReadMemoryParams p) {
  AwaitPriorKernels();
  const auto* const from = static_cast<const std::byte*>(p.from);
  const int64_t pieces = p.bytes / 16, stride = static_cast<int64_t>(GridX()) * kThreads;
  const int64_t thread = static_cast<int64_t>(BlockX()) * kThreads + ThreadX();
  uint32_t all = 0;
  for (int64_t first = thread; first < pieces; first += stride * kUnderWay) {
    Vector16 read[kUnderWay] = {};
    TM_UNROLL
    for (int i = 0; i < kUnderWay; ++i) {
      if (first + i * stride < pieces) read[i] = LoadGlobal16Once(from + (first + i * stride) * 16);
    }
    TM_UNROLL
    for (int i = 0; i < kUnderWay; ++i)
      all ^= read[i].word[0] ^ read[i].word[1] ^ read[i].word[2] ^ read[i].word[3];
  }
  StoreGlobal(p.out + thread, all);
}

int LaunchReadMemory(const ReadMemoryParams& params, void* stream) {
  return TM_LAUNCH(ReadMemoryKernel, Dim3{static_cast<unsigned>(params.blocks)}, Dim3{kThreads}, 0,
                   static_cast<Stream>(stream), params);
}

}  // namespace tramontane::gpu
