// The host side of primitives.cuh: what each wrapped instruction does, in terms of the emulator. Tests only.
// Included by primitives.cuh when no CUDA compiler is at work. Includes no toolkit header.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/core/dtype.h"
#include "kernels/cuda/emulator/command_queue.h"
#include "kernels/cuda/emulator/emulator.h"

#define TM_KERNEL
#define TM_BOUNDS(...)
#define TM_DEVICE inline
#define TM_HOST_DEVICE inline
#define TM_UNROLL
#define TM_ROLLED
#define TM_UNROLL_BY_4

// TM_LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...): a checked launch, with copies of the
// arguments; queued on the stream, or without one (null) run to the end here.
#define TM_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                   \
  (::tramontane::cuda::LaunchEmulated((stream), (grid), (block), static_cast<size_t>(shared_bytes), \
                                      kernel __VA_OPT__(, ) __VA_ARGS__))

namespace tramontane::cuda {

using Stream = emulator::CommandQueue*;
using Dim3 = emulator::Dim3;

// 0: launched; else the runtime's error.
template <typename Kernel, typename... Arguments>
int LaunchEmulated(Stream stream, Dim3 grid, Dim3 block, size_t shared_bytes, Kernel kernel,
                   Arguments... arguments) {
  emulator::CheckLaunch(reinterpret_cast<const void*>(kernel), grid, shared_bytes,
                        (size_t{0} + ... + sizeof(Arguments)));  // NOLINT(bugprone-sizeof-expression)
  emulator::Launch launch{grid, block, shared_bytes, [=] { kernel(arguments...); }};
  launch.must_await = stream != nullptr;
  auto run = [launch = std::move(launch)] {
    emulator::TotalStats().Add(emulator::Run(launch, emulator::CurrentSettings()));
  };
  if (stream == nullptr) {
    run();
  } else {
    stream->Push(std::move(run));
  }
  return 0;
}

// Lets a kernel be launched with up to kMostBytes of shared memory; sm_90 has 227 KiB a block. 0 or the
// runtime's error.
template <auto* kKernel, int kMostBytes>
int AllowSharedBytes() {
  emulator::AllowSharedBytes(reinterpret_cast<const void*>(kKernel), size_t{kMostBytes});
  return kMostBytes <= 227 * 1024 ? 0 : 1;
}

// ---- element types ------------------------------------------------------------------------------

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

inline float ToFloat(Bf16 x) { return Bf16ToFloat(x.bits); }
inline float ToFloat(F16 x) { return F16ToFloat(x.bits); }
inline float ToFloat(float x) { return x; }
template <typename T>
T FromFloat(float x);
template <>
inline Bf16 FromFloat<Bf16>(float x) {
  return {FloatToBf16(x)};
}
template <>
inline F16 FromFloat<F16>(float x) {
  return {FloatToF16(x)};
}
template <>
inline float FromFloat<float>(float x) {
  return x;
}
// Two neighbours in one register, the first in the low half.
template <typename T>
uint32_t PackPair(float low, float high) {
  return uint32_t{FromFloat<T>(low).bits} | uint32_t{FromFloat<T>(high).bits} << 16;
}

struct alignas(16) Vector16 {
  uint32_t word[4];
};
struct alignas(8) Vector8 {
  uint32_t word[2];
};

// ---- where a thread is --------------------------------------------------------------------------

inline int ThreadX() { return static_cast<int>(emulator::ThreadIndex().x); }
inline int BlockX() { return static_cast<int>(emulator::BlockIndex().x); }
inline int BlockY() { return static_cast<int>(emulator::BlockIndex().y); }
inline int GridY() { return static_cast<int>(emulator::GridDimension().y); }
inline int GridX() { return static_cast<int>(emulator::GridDimension().x); }
inline int BlockSizeX() { return static_cast<int>(emulator::BlockDimension().x); }
inline int LaneId() { return emulator::Lane(); }
inline std::byte* SharedBytes() { return emulator::SharedMemory(); }

inline void SyncThreads(emulator::Site site = emulator::Site::current()) { emulator::SyncThreads(site); }

// Waits for nothing here, where kernels run one after the other; but on a stream a thread that touches global
// memory before it is a broken rule.
inline void AwaitPriorKernels() { emulator::AwaitPriorKernels(); }
inline void PrefetchConstant(const void*) {}

// ---- global memory: counted ---------------------------------------------------------------------

template <typename T>
T LoadGlobal(const T* address) {
  emulator::CheckAligned(address, alignof(T));
  emulator::CountRead(sizeof(T));
  return *address;
}
template <typename T>
void StoreGlobal(T* address, T value) {
  emulator::CheckAligned(address, alignof(T));
  emulator::CountWritten(sizeof(T));
  *address = value;
}
// What every thread of the block reads from the same address: counted for thread 0 alone.
template <typename T>
T LoadUniform(const T* address) {
  if (ThreadX() == 0) emulator::CountRead(sizeof(T));
  return *address;
}
template <int kLanes, typename T>
T LoadTogether(const T* address) {
  emulator::CheckAligned(address, alignof(T));
  if (LaneId() % kLanes == 0) emulator::CountRead(sizeof(T));
  return *address;
}
// Counted by whoever calls.
inline Vector16 ReadVector16(const void* address) {
  emulator::CheckAligned(address, 16);
  Vector16 value;
  std::memcpy(&value, address, 16);
  return value;
}
inline Vector16 LoadGlobal16(const void* address) {
  emulator::CountRead(16);
  return ReadVector16(address);
}
inline void StoreGlobal16(void* address, const Vector16& value) {
  emulator::CheckAligned(address, 16);
  emulator::CountWritten(16);
  std::memcpy(address, &value, 16);
}

inline Vector16 LoadGlobal16Once(const void* address) { return LoadGlobal16(address); }
inline Vector16 LoadConstant16Once(const void* address) {
  emulator::CountConstantRead(16);
  return ReadVector16(address);
}
inline Vector16 LoadConstant16(const void* address) { return LoadConstant16Once(address); }
inline Vector8 LoadGlobal8Once(const void* address) {
  return LoadGlobal(static_cast<const Vector8*>(address));
}
// ---- shared memory: bank conflicts counted

namespace host {
template <typename T>
T LoadShared(const void* address, emulator::Site site) {
  emulator::CheckAligned(address, sizeof(T));
  emulator::CountSharedAccess(address, sizeof(T), site);
  T value;
  std::memcpy(&value, address, sizeof(T));
  return value;
}
template <typename T>
void StoreShared(void* address, const T& value, emulator::Site site) {
  emulator::CheckAligned(address, sizeof(T));
  emulator::CountSharedAccess(address, sizeof(T), site);
  std::memcpy(address, &value, sizeof(T));
  emulator::CountSharedWrite(address, sizeof(T));
}
}  // namespace host

inline Vector16 LoadShared16(const void* address, emulator::Site site = emulator::Site::current()) {
  return host::LoadShared<Vector16>(address, site);
}
inline void StoreShared16(void* address, const Vector16& value,
                          emulator::Site site = emulator::Site::current()) {
  host::StoreShared(address, value, site);
}
inline Vector8 LoadShared8(const void* address, emulator::Site site = emulator::Site::current()) {
  return host::LoadShared<Vector8>(address, site);
}
inline void StoreShared8(void* address, const Vector8& value,
                         emulator::Site site = emulator::Site::current()) {
  host::StoreShared(address, value, site);
}
inline float LoadShared(const float* address, emulator::Site site = emulator::Site::current()) {
  return host::LoadShared<float>(address, site);
}
inline void StoreShared(float* address, float value, emulator::Site site = emulator::Site::current()) {
  host::StoreShared(address, value, site);
}
inline uint32_t LoadShared(const uint32_t* address, emulator::Site site = emulator::Site::current()) {
  return host::LoadShared<uint32_t>(address, site);
}
inline void StoreShared(uint32_t* address, uint32_t value, emulator::Site site = emulator::Site::current()) {
  host::StoreShared(address, value, site);
}

// ---- between blocks of a grid

inline void FenceGlobal() {}
template <typename T>
T AtomicAddGlobal(T* address, T value) {
  emulator::CountRead(sizeof(T));
  emulator::CountWritten(sizeof(T));
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
inline Vector16 LoadGlobal16Written(const void* address) { return LoadGlobal16(address); }
template <typename T>
T LoadGlobalWritten(const T* address) {
  return LoadGlobal(address);
}
template <int kLanes, typename T>
T LoadTogetherWritten(const T* address) {
  return LoadTogether<kLanes>(address);
}

// ---- asynchronous copies to shared memory: 16 or 4 bytes, of which the first `bytes` are read, the rest
// zero

namespace host {
template <int kBytes>
void CopyAsync(void* shared, const void* global, int bytes) {
  emulator::CheckAligned(shared, kBytes);
  if (bytes > 0) emulator::CheckAligned(global, kBytes);
  emulator::IssueCopy({static_cast<std::byte*>(shared), static_cast<const std::byte*>(global),
                       static_cast<size_t>(bytes), static_cast<size_t>(kBytes - bytes)});
}
}  // namespace host

inline void CopyAsync16(void* shared, const void* global, int bytes) {
  host::CopyAsync<16>(shared, global, bytes);
}
inline void CopyAsync4(void* shared, const void* global, int bytes) {
  host::CopyAsync<4>(shared, global, bytes);
}
inline void CopyCommit() { emulator::CommitCopies(); }
template <int kGroupsLeft>
void CopyWait() {
  emulator::WaitCopies(kGroupsLeft);
}

// ---- warp collectives ---------------------------------------------------------------------------

namespace host {
// Every lane gets the value of lane source(own lane, operand).
template <typename T, int (*kSource)(int lane, int operand)>
T Shuffle(T value, int which, emulator::Site site) {
  struct Operand {
    T value;
    int which;
  } operand{value, which};
  emulator::WarpCollective(0xffffffffu, site, &operand, sizeof(operand),
                           [](void* const operands[32], unsigned) {
                             T values[32];
                             for (int i = 0; i < 32; ++i)
                               values[i] = static_cast<Operand*>(operands[i])->value;
                             for (int i = 0; i < 32; ++i) {
                               auto* own = static_cast<Operand*>(operands[i]);
                               own->value = values[kSource(i, own->which)];
                             }
                           });
  return operand.value;
}
inline int LaneXor(int lane, int mask) { return lane ^ mask; }
inline int LaneBelow(int lane, int delta) { return lane >= delta ? lane - delta : lane; }
}  // namespace host

inline float ShuffleXor(float value, int lane_mask, emulator::Site site = emulator::Site::current()) {
  return host::Shuffle<float, host::LaneXor>(value, lane_mask, site);
}
inline uint64_t ShuffleXor(uint64_t value, int lane_mask, emulator::Site site = emulator::Site::current()) {
  return host::Shuffle<uint64_t, host::LaneXor>(value, lane_mask, site);
}
inline uint64_t ShuffleUp(uint64_t value, int delta, emulator::Site site = emulator::Site::current()) {
  return host::Shuffle<uint64_t, host::LaneBelow>(value, delta, site);
}

// ---- atomics on shared memory -------------------------------------------------------------------

inline int32_t AtomicAddShared(int32_t* address, int32_t value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
inline void AtomicAddShared(uint64_t* address, uint64_t value) {
  __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
inline void AtomicMinShared(uint32_t* address, uint32_t value) {
  // Threads of a block take turns, so nothing comes between.
  if (value < __atomic_load_n(address, __ATOMIC_RELAXED)) __atomic_store_n(address, value, __ATOMIC_RELAXED);
}
inline uint32_t ReadSharedNow(const uint32_t* address) { return __atomic_load_n(address, __ATOMIC_RELAXED); }

// Four 8x8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8 (16 bytes);
// register j of lane l gets elements (l / 4, 2 * (l % 4)) and the next of matrix j; transposed: elements (2 *
// (l % 4), l / 4) and the one below.
namespace host {
struct MatrixOperand {
  const void* address;
  uint16_t row[8];
  uint32_t out[4];
};
template <bool kTransposed>
void LoadMatrices(uint32_t out[4], const void* row, emulator::Site site) {
  emulator::CheckAligned(row, 16);
  MatrixOperand operand;
  operand.address = row;
  std::memcpy(operand.row, row, 16);
  emulator::WarpCollective(0xffffffffu, site, &operand, sizeof(operand),
                           [](void* const operands[32], unsigned) {
                             const void* rows[32];
                             for (int i = 0; i < 32; ++i)
                               rows[i] = static_cast<MatrixOperand*>(operands[i])->address;
                             emulator::CountMatrixLoad(rows, 32);
                             auto element = [&](int matrix, int r, int c) {
                               return uint32_t{static_cast<MatrixOperand*>(operands[matrix * 8 + r])->row[c]};
                             };
                             for (int lane = 0; lane < 32; ++lane) {
                               for (int j = 0; j < 4; ++j) {
                                 const int a = lane / 4, b = 2 * (lane % 4);
                                 static_cast<MatrixOperand*>(operands[lane])->out[j] =
                                     kTransposed ? element(j, b, a) | element(j, b + 1, a) << 16
                                                 : element(j, a, b) | element(j, a, b + 1) << 16;
                               }
                             }
                           });
  std::memcpy(out, operand.out, 16);
}
}  // namespace host

inline void LoadMatrix4(uint32_t out[4], const void* row, emulator::Site site = emulator::Site::current()) {
  host::LoadMatrices<false>(out, row, site);
}
inline void LoadMatrix4Transposed(uint32_t out[4], const void* row,
                                  emulator::Site site = emulator::Site::current()) {
  host::LoadMatrices<true>(out, row, site);
}

// c [16, 8] f32 += a [16, 16] * b [16, 8], T elements. With g = lane / 4 and t = lane % 4:
//   a: (g, 2t..) (g+8, 2t..) (g, 2t+8..) (g+8, 2t+8..)   b: (2t.., g) (2t+8.., g)   c: (g, 2t..) (g+8, 2t..)
template <typename T>
void Mma16816(float c[4], const uint32_t a[4], const uint32_t b[2],
              emulator::Site site = emulator::Site::current()) {
  struct Operand {
    uint32_t a[4];
    uint32_t b[2];
    float c[4];
  } operand;
  std::memcpy(operand.a, a, sizeof(operand.a));
  std::memcpy(operand.b, b, sizeof(operand.b));
  std::memcpy(operand.c, c, sizeof(operand.c));
  emulator::WarpCollective(0xffffffffu, site, &operand, sizeof(operand),
                           [](void* const operands[32], unsigned) {
                             float a_full[16][16], b_full[16][8];
                             auto half = [](uint32_t word, int which) {
                               return ToFloat(T{static_cast<uint16_t>(which == 0 ? word : word >> 16)});
                             };
                             for (int lane = 0; lane < 32; ++lane) {
                               const auto* o = static_cast<Operand*>(operands[lane]);
                               const int g = lane / 4, t = lane % 4;
                               for (int h = 0; h < 2; ++h) {
                                 a_full[g][2 * t + h] = half(o->a[0], h);
                                 a_full[g + 8][2 * t + h] = half(o->a[1], h);
                                 a_full[g][2 * t + 8 + h] = half(o->a[2], h);
                                 a_full[g + 8][2 * t + 8 + h] = half(o->a[3], h);
                                 b_full[2 * t + h][g] = half(o->b[0], h);
                                 b_full[2 * t + 8 + h][g] = half(o->b[1], h);
                               }
                             }
                             for (int lane = 0; lane < 32; ++lane) {
                               auto* o = static_cast<Operand*>(operands[lane]);
                               const int g = lane / 4, t = lane % 4;
                               for (int i = 0; i < 4; ++i) {
                                 const int row = g + (i / 2) * 8, column = 2 * t + i % 2;
                                 float sum = o->c[i];
                                 for (int k = 0; k < 16; ++k) sum += a_full[row][k] * b_full[k][column];
                                 o->c[i] = sum;
                               }
                             }
                           });
  std::memcpy(c, operand.c, sizeof(operand.c));
}

// ---- arithmetic ---------------------------------------------------------------------------------

inline float Exp2(float x) { return std::exp2(x); }
inline float Log2(float x) { return std::log2(x); }
inline float ReciprocalSqrt(float x) { return 1.0f / std::sqrt(x); }
inline void SineCosine(double x, double* sine, double* cosine) {
  *sine = std::sin(x);
  *cosine = std::cos(x);
}
inline int Max(int a, int b) { return a > b ? a : b; }
inline int Min(int a, int b) { return a < b ? a : b; }
inline float Max(float a, float b) { return std::fmax(a, b); }
inline double Log(double x) { return std::log(x); }
inline void CountExponential() { emulator::CountExponential(); }
inline void CountJoinedParts(int parts) { emulator::CountJoinedParts(parts); }
inline double Log1p(double x) { return std::log1p(x); }
// A product that is rounded before anything is added to it.
inline float MultiplyUnfused(float a, float b) {
  volatile float product = a * b;
  return product;
}
inline float MultiplyAdd(float a, float b, float c) { return std::fma(a, b, c); }
inline uint32_t BitsOf(float x) { return std::bit_cast<uint32_t>(x); }
inline float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }
inline float FloatAboveByte(uint32_t word, int i) {
  return 8388608.0f + static_cast<float>(word >> (8 * i) & 255u);
}
inline uint32_t PermuteBytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t digit = selector >> (4 * i) & 15u;
    const uint32_t byte = ((digit & 4u) == 0 ? low : high) >> (8 * (digit & 3u)) & 255u;
    out |= ((digit & 8u) == 0 ? byte : byte >> 7 != 0 ? 255u : 0u) << (8 * i);
  }
  return out;
}
// a * b + c in bf16. The product is exact in f64; on the way to bf16 what is not exact has an odd last digit,
// so that only the last step rounds.
inline uint16_t MultiplyAddBf16(uint16_t a, uint16_t b, uint16_t c) {
  const double product = double{ToFloat(Bf16{a})} * double{ToFloat(Bf16{b})}, addend = ToFloat(Bf16{c});
  double sum = product + addend;
  const double of_addend = sum - product;
  const double error = (product - (sum - of_addend)) + (addend - of_addend);
  if (error != 0.0 && std::isfinite(sum) && (std::bit_cast<uint64_t>(sum) & 1u) == 0) {
    sum = std::nextafter(sum, error > 0.0 ? HUGE_VAL : -HUGE_VAL);
  }
  auto narrow = static_cast<float>(sum);
  if (double{narrow} != sum && !std::isnan(sum) && (BitsOf(narrow) & 1u) == 0) {
    narrow = std::nextafter(narrow, double{narrow} < sum ? HUGE_VALF : -HUGE_VALF);
  }
  return FromFloat<Bf16>(narrow).bits;
}
inline uint32_t MultiplyAddPair(uint32_t a, uint32_t b, uint32_t c) {
  const auto half = [&](int shift) {
    return uint32_t{MultiplyAddBf16(static_cast<uint16_t>(a >> shift), static_cast<uint16_t>(b >> shift),
                                    static_cast<uint16_t>(c >> shift))};
  };
  return half(0) | half(16) << 16;
}
inline uint64_t BitsOf(double x) { return std::bit_cast<uint64_t>(x); }

}  // namespace tramontane::cuda
