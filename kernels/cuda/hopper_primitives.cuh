// The vocabulary of sm_90a, beside primitives.cuh: barriers in shared memory that count arrivals and bytes
// (mbarrier), boxes of a tensor fetched by the TMA unit, and products of a warpgroup (wgmma) whose operands
// lie in shared memory. Compiled by nvcc it is the instructions; compiled as host C++ it is the emulator's
// model of them (emulator/hopper_primitives_host.h). Only hopper_*.cu include it, and these are compiled for
// sm_90a alone (nvcc.cmake).
//
// Source: PTX ISA 9.0, the sections on mbarrier, cp.async.bulk.tensor, "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions" and "Async proxy"; the CUDA driver API's cuTensorMapEncodeTiled.
#pragma once

#include "kernels/cuda/primitives.cuh"
#include "kernels/cuda/tensor_map.h"

#ifndef __CUDACC__
#include "kernels/cuda/emulator/hopper_primitives_host.h"
#else

#include <cuda.h>

#define TM_GRID_CONSTANT __grid_constant__
#define TM_ROLLED _Pragma("unroll 1")

namespace tramontane::cuda {

// ---- host: a tensor map, encoded by the driver --------------------------------------------------

// 0 or the runtime's error. The driver's function is found at run time: nothing links libcuda.
inline int MakeTensorMap(const TensorMapShape& shape, TensorMap* map) {
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) == alignof(CUtensorMap));
  static_assert(sizeof(cuuint64_t) == sizeof(uint64_t) && sizeof(cuuint32_t) == sizeof(int32_t));
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                               cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? function : nullptr;
  }();
  if (found == nullptr) return static_cast<int>(cudaErrorSymbolNotFound);
  cuuint64_t sizes[kTensorMapDimensions], strides[kTensorMapDimensions - 1];
  cuuint32_t box[kTensorMapDimensions], steps[kTensorMapDimensions];
  for (int d = 0; d < kTensorMapDimensions; ++d) {
    sizes[d] = static_cast<cuuint64_t>(shape.sizes[d]);
    box[d] = static_cast<cuuint32_t>(shape.box[d]);
    steps[d] = 1;
    if (d > 0) strides[d - 1] = static_cast<cuuint64_t>(shape.stride_bytes[d - 1]);
  }
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  const CUresult result = encode(reinterpret_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                 kTensorMapDimensions, const_cast<void*>(shape.base), sizes, strides, box,
                                 steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? 0 : static_cast<int>(cudaErrorInvalidValue);
}

// ---- shared memory ------------------------------------------------------------------------------

// Shared memory from a multiple of 1024 bytes on, the period of SWIZZLE_128B: where a kernel has no static
// shared memory it begins there, and a kernel may trust the alignment that the declaration asks for.
TM_DEVICE std::byte* AlignedSharedBytes() {
  extern __shared__ __align__(1024) unsigned char tramontane_aligned_shared[];
  return reinterpret_cast<std::byte*>(tramontane_aligned_shared);
}

TM_DEVICE void SyncWarp() { __syncwarp(); }

// ---- mbarrier -----------------------------------------------------------------------------------

struct alignas(8) Mbarrier {
  uint64_t state;
};

// A phase is over when so many have arrived and all bytes that they expect have landed. By one thread, before
// FenceBarrierInit and a barrier of the block.
TM_DEVICE void InitBarrier(Mbarrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals)
               : "memory");
}
// What was initialised is there for the TMA unit, too.
TM_DEVICE void FenceBarrierInit() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
TM_DEVICE void Arrive(Mbarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
TM_DEVICE void ArriveExpecting(Mbarrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(bytes)
               : "memory");
}
// Until the phase of this parity is over; of a new barrier that of parity 1 is.
TM_DEVICE void WaitPhase(Mbarrier* barrier, int parity) {
  uint32_t over;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(over)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
  } while (over == 0);
}

// ---- barriers of some warps of a block: 1 to 15, 0 is SyncThreads' ------------------------------

TM_DEVICE void SyncNamedBarrier(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
TM_DEVICE void ArriveAtNamedBarrier(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- TMA ----------------------------------------------------------------------------------------

TM_DEVICE void PrefetchMap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}
// Fetches the box at `coordinates` to shared memory, a multiple of 128 bytes, rows of 128 bytes swizzled, and
// tells the barrier of its bytes; what lies outside of the tensor is zero, and counted.
TM_DEVICE void LoadBox(void* shared, const TensorMap& map, Mbarrier* barrier,
                       const int32_t (&coordinates)[kTensorMapDimensions]) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(SharedAddress(shared)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(SharedAddress(barrier)), "r"(coordinates[0]),
      "r"(coordinates[1]), "r"(coordinates[2]), "r"(coordinates[3]), "r"(coordinates[4])
      : "memory");
}
// What this thread stored to shared memory by plain stores is seen by wgmma and TMA behind the next barrier.
TM_DEVICE void FenceAsyncProxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- registers of a warpgroup: by all its warps -------------------------------------------------

template <int kRegisters>
TM_DEVICE void LowerRegisterCount() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
TM_DEVICE void RaiseRegisterCount() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- wgmma: by all four warps of a warpgroup ----------------------------------------------------

// Before the first product of a group.
TM_DEVICE void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TM_DEVICE void WgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kGroupsLeft>
TM_DEVICE void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroupsLeft) : "memory");
}
// No instruction: the compiler moves no use of these registers across it.
template <int kCount>
TM_DEVICE void PinRegisters(float (&registers)[kCount]) {
  TM_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

#define TM_SUMS4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TM_SUMS16(i) TM_SUMS4(i), TM_SUMS4(i + 4), TM_SUMS4(i + 8), TM_SUMS4(i + 12)

// d [64, kN] f32 (+)= a [64, 16] * b [16, kN], both in shared memory, rows of a and columns of b along k
// (K-major). Element i of d in thread t of the warpgroup is of row 16 (t / 32) + (t % 32) / 4 + 8 (i / 2 % 2)
// and column 8 (i / 4) + 2 (t % 4) + i % 2. `a` and `b` are MatrixDescriptors.
template <int kN>
TM_DEVICE void WgmmaShared(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate);
template <>
TM_DEVICE void WgmmaShared<64>(float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;\n}\n"
      : TM_SUMS16(0), TM_SUMS16(16)
      : "l"(a), "l"(b), "r"(accumulate ? 1 : 0));
}
template <>
TM_DEVICE void WgmmaShared<128>(float (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, 0, 0;\n}\n"
      : TM_SUMS16(0), TM_SUMS16(16), TM_SUMS16(32), TM_SUMS16(48)
      : "l"(a), "l"(b), "r"(accumulate ? 1 : 0));
}

// d [64, kN] f32 += a [64, 16] * b [16, kN]: a in registers, each warp's 16 rows as Mma16816 takes them; b in
// shared memory, its rows along n (MN-major, transposed).
template <int kN>
TM_DEVICE void WgmmaRegisters(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b);
template <>
TM_DEVICE void WgmmaRegisters<64>(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
      : TM_SUMS16(0), TM_SUMS16(16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}
template <>
TM_DEVICE void WgmmaRegisters<128>(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
      : TM_SUMS16(0), TM_SUMS16(16), TM_SUMS16(32), TM_SUMS16(48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

#undef TM_SUMS16
#undef TM_SUMS4

}  // namespace tramontane::cuda

#endif

namespace tramontane::cuda {

// Of an operand in SWIZZLE_128B at `at`: rows of 128 bytes, eight of them (1024 bytes, a multiple of 1024) an
// atom. PTX ISA, "Matrix Descriptor Format": bits 0-13 the address, 16-29 the leading dimension byte offset,
// 32-45 the stride dimension byte offset, each without its low four bits; 49-51 the base offset, 0 for atoms
// at multiples of 1024; 62-63 the swizzling mode, 1 for 128 bytes.
//   K-major:  rows are m (or n); `stride_bytes` from eight rows to the next; the leading offset is not used.
//   MN-major: rows are k; `leading_bytes` from 64 elements of n to the next, and
//             `stride_bytes` from eight rows to the next.
// Another 16 elements of k: 32 bytes farther (K-major), or 16 rows.
TM_DEVICE uint64_t MatrixDescriptor(const void* at, uint32_t leading_bytes, uint32_t stride_bytes) {
  return uint64_t{(SharedAddress(at) & 0x3ffffu) >> 4} | uint64_t{leading_bytes >> 4} << 16 |
         uint64_t{stride_bytes >> 4} << 32 | uint64_t{1} << 62;
}
// The same operand, so many bytes farther.
TM_DEVICE uint64_t Advanced(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes >> 4);
}

}  // namespace tramontane::cuda
