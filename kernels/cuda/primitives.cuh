// The vocabulary of the kernels: every machine instruction they use beyond plain C++, under one name each.
// With hopper_primitives.cuh the only inline PTX. By nvcc it is the instructions; as host C++ it is the
// emulator's model of them (emulator/primitives_host.h states what each one does).
//
// Rules for kernel sources: nothing but this header and plain C++; shared memory through SharedBytes();
// launches through TM_LAUNCH; no reliance on lanes running in step without a collective. Source: PTX ISA 9.0,
// sections on mma.m16n8k16, ldmatrix and cp.async.
#pragma once

#ifndef __CUDACC__
#include "kernels/cuda/emulator/primitives_host.h"
#else

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#define TM_KERNEL __global__
#define TM_BOUNDS(...) __launch_bounds__(__VA_ARGS__)  // threads of a block, and blocks that shall fit
#define TM_DEVICE __device__ __forceinline__
#define TM_HOST_DEVICE __host__ __device__ inline
#define TM_UNROLL _Pragma("unroll")
#define TM_ROLLED _Pragma("unroll 1")
#define TM_UNROLL_BY_4 _Pragma("unroll 4")

#define TM_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  (::tramontane::cuda::Launch((stream), (grid), (block), (shared_bytes), kernel __VA_OPT__(, ) __VA_ARGS__))

namespace tramontane::cuda {

using Stream = cudaStream_t;
using Dim3 = dim3;

// Whether a kernel may begin while the one before it still runs (programmatic dependent launch, sm_90 and
// later). TRAMONTANE_NO_PDL=1 in the environment, read once, forbids it.
inline bool DeviceOverlapsKernels() {
  static const bool overlaps = [] {
    const char* forbidden = std::getenv("TRAMONTANE_NO_PDL");
    if (forbidden != nullptr && forbidden[0] == '1') return false;
    int major = 0;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess && major >= 9;
  }();
  return overlaps;
}

// 0 or the runtime's error.
template <typename... Parameters, typename... Arguments>
int Launch(Stream stream, Dim3 grid, Dim3 block, size_t shared_bytes, void (*kernel)(Parameters...),
           const Arguments&... arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = DeviceOverlapsKernels() ? 1 : 0;
  return static_cast<int>(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

// Lets a kernel be launched with up to kMostBytes of shared memory: said to the runtime once, since what a
// recorded launch may use must not change under it. 0 or the runtime's error.
template <auto* kKernel, int kMostBytes>
int AllowSharedBytes() {
  static const auto error = static_cast<int>(
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostBytes));
  return error;
}

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

TM_DEVICE float ToFloat(Bf16 x) { return __uint_as_float(uint32_t{x.bits} << 16); }
TM_DEVICE float ToFloat(F16 x) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x.bits));
  return out;
}
TM_DEVICE float ToFloat(float x) { return x; }
template <typename T>
TM_DEVICE T FromFloat(float x);
template <>
TM_DEVICE Bf16 FromFloat<Bf16>(float x) {
  Bf16 out;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
  return out;
}
template <>
TM_DEVICE F16 FromFloat<F16>(float x) {
  F16 out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
  return out;
}
template <>
TM_DEVICE float FromFloat<float>(float x) {
  return x;
}
template <typename T>
TM_DEVICE uint32_t PackPair(float low, float high);
template <>
TM_DEVICE uint32_t PackPair<Bf16>(float low, float high) {
  uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
template <>
TM_DEVICE uint32_t PackPair<F16>(float low, float high) {
  uint32_t out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

struct alignas(16) Vector16 {
  uint32_t word[4];
};
struct alignas(8) Vector8 {
  uint32_t word[2];
};

TM_DEVICE int ThreadX() { return static_cast<int>(threadIdx.x); }
TM_DEVICE int BlockX() { return static_cast<int>(blockIdx.x); }
TM_DEVICE int BlockY() { return static_cast<int>(blockIdx.y); }
TM_DEVICE int GridY() { return static_cast<int>(gridDim.y); }
TM_DEVICE int GridX() { return static_cast<int>(gridDim.x); }
TM_DEVICE int BlockSizeX() { return static_cast<int>(blockDim.x); }
TM_DEVICE int LaneId() { return static_cast<int>(threadIdx.x % 32); }
TM_DEVICE std::byte* SharedBytes() {
  extern __shared__ uint4 tramontane_shared[];
  return reinterpret_cast<std::byte*>(tramontane_shared);
}
TM_DEVICE void SyncThreads() { __syncthreads(); }

// In every thread of every kernel, before it touches memory that another kernel writes or reads: lets the
// next kernel of the stream begin, and waits until the ones before are done.
TM_DEVICE void AwaitPriorKernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Brings the line at an address, which no kernel writes, into the L2 cache. Allowed before AwaitPriorKernels.
TM_DEVICE void PrefetchConstant(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

template <typename T>
TM_DEVICE T LoadGlobal(const T* address) {
  return *address;
}
template <typename T>
TM_DEVICE void StoreGlobal(T* address, T value) {
  *address = value;
}
// What every thread of the block reads from the same address: one fetch, counted once a block.
template <typename T>
TM_DEVICE T LoadUniform(const T* address) {
  return *address;
}
// What neighbouring lanes, kLanes of them, read from the same address at once: one fetch, counted for the
// first.
template <int kLanes, typename T>
TM_DEVICE T LoadTogether(const T* address) {
  return *address;
}
TM_DEVICE Vector16 LoadGlobal16(const void* address) { return *static_cast<const Vector16*>(address); }
TM_DEVICE void StoreGlobal16(void* address, const Vector16& value) {
  *static_cast<Vector16*>(address) = value;
}

// For data that is read once: does not push anything out of the L1 cache.
TM_DEVICE Vector16 LoadGlobal16Once(const void* address) {
  Vector16 out;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.word[0]), "=r"(out.word[1]), "=r"(out.word[2]), "=r"(out.word[3])
               : "l"(address));
  return out;
}
// The same of what no kernel writes. Allowed before AwaitPriorKernels.
TM_DEVICE Vector16 LoadConstant16Once(const void* address) { return LoadGlobal16Once(address); }
// The same of what other blocks read, too.
TM_DEVICE Vector16 LoadConstant16(const void* address) {
  Vector16 out;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.word[0]), "=r"(out.word[1]), "=r"(out.word[2]), "=r"(out.word[3])
               : "l"(address));
  return out;
}
TM_DEVICE Vector8 LoadGlobal8Once(const void* address) {
  Vector8 out;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(out.word[0]), "=r"(out.word[1])
               : "l"(address));
  return out;
}
TM_DEVICE Vector16 LoadShared16(const void* address) { return *static_cast<const Vector16*>(address); }
TM_DEVICE void StoreShared16(void* address, const Vector16& value) {
  *static_cast<Vector16*>(address) = value;
}
TM_DEVICE Vector8 LoadShared8(const void* address) { return *static_cast<const Vector8*>(address); }
TM_DEVICE void StoreShared8(void* address, const Vector8& value) { *static_cast<Vector8*>(address) = value; }
TM_DEVICE float LoadShared(const float* address) { return *address; }
TM_DEVICE void StoreShared(float* address, float value) { *address = value; }
TM_DEVICE uint32_t LoadShared(const uint32_t* address) { return *address; }
TM_DEVICE void StoreShared(uint32_t* address, uint32_t value) { *address = value; }

// ---- between blocks of a grid

// What this thread wrote to global memory is seen by whoever sees what it writes next.
TM_DEVICE void FenceGlobal() { __threadfence(); }
// On integers only: what they come to does not depend on the order. Return what was there before.
TM_DEVICE int32_t AtomicAddGlobal(int32_t* address, int32_t value) { return atomicAdd(address, value); }
TM_DEVICE uint64_t AtomicAddGlobal(uint64_t* address, uint64_t value) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
}
// What another block of this grid has written: not out of the L1 cache.
TM_DEVICE Vector16 LoadGlobal16Written(const void* address) {
  const uint4 value = __ldcg(static_cast<const uint4*>(address));
  return {{value.x, value.y, value.z, value.w}};
}
template <typename T>
TM_DEVICE T LoadGlobalWritten(const T* address) {
  return __ldcg(address);
}
// The same, counted as LoadTogether.
template <int kLanes, typename T>
TM_DEVICE T LoadTogetherWritten(const T* address) {
  return __ldcg(address);
}

TM_DEVICE uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

TM_DEVICE void CopyAsync16(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)), "l"(global),
               "r"(bytes)
               : "memory");
}
TM_DEVICE void CopyAsync4(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(SharedAddress(shared)), "l"(global),
               "r"(bytes)
               : "memory");
}
TM_DEVICE void CopyCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kGroupsLeft>
TM_DEVICE void CopyWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
}

TM_DEVICE float ShuffleXor(float value, int lane_mask) {
  return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}

TM_DEVICE uint64_t ShuffleXor(uint64_t value, int lane_mask) {
  return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}
// From the lane `delta` below; the lowest lanes keep their own.
TM_DEVICE uint64_t ShuffleUp(uint64_t value, int delta) {
  return __shfl_up_sync(0xffffffffu, value, static_cast<unsigned>(delta));
}

// Atomics on shared memory, on integers only: their result does not depend on the order.
TM_DEVICE int32_t AtomicAddShared(int32_t* address, int32_t value) { return atomicAdd(address, value); }
// Shared memory adds 32 bits in one instruction, 64 in a loop of compare and swap: so by halves, each carry
// by whoever made it. The sum is right once all have added.
TM_DEVICE void AtomicAddShared(uint64_t* address, uint64_t value) {
  auto* halves = reinterpret_cast<uint32_t*>(address);
  const auto low = static_cast<uint32_t>(value);
  const uint32_t before = atomicAdd(halves, low);
  const uint32_t high = static_cast<uint32_t>(value >> 32) + (before + low < before ? 1u : 0u);
  if (high != 0) atomicAdd(halves + 1, high);
}
TM_DEVICE void AtomicMinShared(uint32_t* address, uint32_t value) { atomicMin(address, value); }
// What other threads lower with AtomicMinShared meanwhile: some value that it has had.
TM_DEVICE uint32_t ReadSharedNow(const uint32_t* address) {
  return *static_cast<const volatile uint32_t*>(address);
}

TM_DEVICE void LoadMatrix4(uint32_t out[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(SharedAddress(row))
               : "memory");
}
TM_DEVICE void LoadMatrix4Transposed(uint32_t out[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(SharedAddress(row))
               : "memory");
}

template <typename T>
TM_DEVICE void Mma16816(float c[4], const uint32_t a[4], const uint32_t b[2]);
template <>
TM_DEVICE void Mma16816<Bf16>(float c[4], const uint32_t a[4], const uint32_t b[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
TM_DEVICE void Mma16816<F16>(float c[4], const uint32_t a[4], const uint32_t b[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

TM_DEVICE float Exp2(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}
TM_DEVICE float Log2(float x) {
  float out;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}
TM_DEVICE float ReciprocalSqrt(float x) { return rsqrtf(x); }
TM_DEVICE void SineCosine(double x, double* sine, double* cosine) { sincos(x, sine, cosine); }
TM_DEVICE float Max(float a, float b) { return fmaxf(a, b); }
TM_HOST_DEVICE int Max(int a, int b) { return a > b ? a : b; }
TM_HOST_DEVICE int Min(int a, int b) { return a < b ? a : b; }
TM_DEVICE double Log(double x) { return log(x); }
// Whoever computes e^x in f64, which is dear, says so; the emulator counts.
TM_DEVICE void CountExponential() {}
// Whoever joins the parts of some rows says how many; the emulator counts.
TM_DEVICE void CountJoinedParts(int) {}
TM_DEVICE double Log1p(double x) { return log1p(x); }
TM_DEVICE float MultiplyUnfused(float a, float b) { return __fmul_rn(a, b); }
TM_DEVICE float MultiplyAdd(float a, float b, float c) { return __fmaf_rn(a, b, c); }
TM_DEVICE uint32_t BitsOf(float x) { return __float_as_uint(x); }
TM_DEVICE float FloatOf(uint32_t bits) { return __uint_as_float(bits); }
// 2^23 + byte i of a word: its bits are the lowest of the float's.
TM_DEVICE float FloatAboveByte(uint32_t word, int i) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u + i));
}
// A byte for each digit of `selector`, the lowest first: bytes 0 to 3 are those of `low`, 4 to 7 of `high`; 8
// more is the byte's highest bit, eight times.
TM_DEVICE uint32_t PermuteBytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(selector));
  return out;
}
// Of two pairs of bf16: a * b + c, rounded once; subnormal numbers are kept.
TM_DEVICE uint32_t MultiplyAddPair(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}
TM_DEVICE uint64_t BitsOf(double x) { return static_cast<uint64_t>(__double_as_longlong(x)); }

}  // namespace tramontane::cuda

#endif

namespace tramontane::cuda {

// The score of a key that is not seen; the highest, and the log of the sum, of a row that sees none.
inline constexpr float kMinusInfinity = -__builtin_huge_valf();

}  // namespace tramontane::cuda
