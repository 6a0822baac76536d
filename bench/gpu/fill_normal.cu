// Normal numbers from a counter: the finaliser of SplitMix64 makes 64 bits of a pair's number, the Box-Muller
// transform two normal numbers of these.
//
// Shapes: out [count] bf16.
// Grid:   blocks of 256 threads, kMostBlocks at most, each thread 8 numbers (16 bytes) at a time.
// Bytes:  written count * 2.
// Math:   f32, the angle in f64: as many distinct radii as 24 bits give, the largest number 5.8 times scale.
#include "bench/gpu/fill_normal.h"

#include "kernels/cuda/primitives.cuh"

namespace tramontane::gpu {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kNumbers = 8;  // of a thread at once
constexpr int64_t kMostBlocks = 4096;

TM_DEVICE uint64_t Mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Two numbers, of which the first is in the low half.
TM_DEVICE uint32_t NormalPair(uint64_t seed, int64_t pair, float scale) {
  const uint64_t bits = Mixed(Mixed(seed) + static_cast<uint64_t>(pair) * 0x9e3779b97f4a7c15ull);
  const float uniform = static_cast<float>((bits >> 40) + 1) * 0x1p-24f;  // (0, 1]
  const float squared = -2.0f * 0.6931471805599453f * Log2(uniform);
  const float radius = squared > 0.0f ? squared * ReciprocalSqrt(squared) * scale : 0.0f;
  double sine = 0, cosine = 0;
  SineCosine(static_cast<double>(bits & 0xffffff) * (6.283185307179586 * 0x1p-24), &sine, &cosine);
  return PackPair<Bf16>(radius * static_cast<float>(cosine), radius * static_cast<float>(sine));
}

}  // namespace

TM_KERNEL TM_BOUNDS(kThreads) void FillNormalKernel(FillNormalParams p) {
  AwaitPriorKernels();
  const int64_t stride = static_cast<int64_t>(GridX()) * kThreads * kNumbers;
  for (int64_t i = (static_cast<int64_t>(BlockX()) * kThreads + ThreadX()) * kNumbers; i < p.count;
       i += stride) {
    Vector16 numbers;
    TM_UNROLL
    for (int w = 0; w < kNumbers / 2; ++w) numbers.word[w] = NormalPair(p.seed, i / 2 + w, p.scale);
    auto* const to = static_cast<uint16_t*>(p.out) + i;
    if (i + kNumbers <= p.count) {
      StoreGlobal16(to, numbers);
    } else {
      for (int j = 0; j < p.count - i; ++j)
        StoreGlobal(to + j, static_cast<uint16_t>(numbers.word[j / 2] >> 16 * (j % 2)));
    }
  }
}

int LaunchFillNormal(const FillNormalParams& params, void* stream) {
  if (params.count == 0) return 0;
  constexpr int64_t kOfBlock = int64_t{kThreads} * kNumbers;
  const int64_t blocks = (params.count + kOfBlock - 1) / kOfBlock;
  return TM_LAUNCH(FillNormalKernel, Dim3{static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks)},
                   Dim3{kThreads}, 0, static_cast<Stream>(stream), params);
}

}  // namespace tramontane::gpu
