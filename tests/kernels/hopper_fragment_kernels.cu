// Test kernels of one block for sm_90a. Shapes and meaning: hopper_fragment_kernels.h.
#include "kernels/cuda/hopper_primitives.cuh"
#include "tests/kernels/hopper_fragment_kernels.h"

namespace tramontane::cuda {

constexpr int kFragmentThreads = 128;  // a warpgroup
constexpr int kFragmentRowBytes = 128;

// Rows of 64 elements as SWIZZLE_128B has them.
TM_DEVICE void StoreRows(const uint16_t* from, int row_elements, int rows, std::byte* to) {
  for (int i = ThreadX(); i < rows * 8; i += kFragmentThreads) {
    const int row = i / 8, piece = i % 8;
    StoreShared16(to + row * kFragmentRowBytes + (piece ^ row % 8) * 16,
                  LoadGlobal16(from + row * row_elements + piece * 8));
  }
}

template <int kN>
TM_KERNEL void WgmmaSharedKernel(const uint16_t* a, const uint16_t* b, float* d) {
  std::byte* a_rows = AlignedSharedBytes();
  std::byte* b_rows = a_rows + kShownRows * kFragmentRowBytes;
  StoreRows(a, kShownK, kShownRows, a_rows);
  StoreRows(b, kShownK, kN, b_rows);
  float sums[kN / 2];
  TM_UNROLL
  for (int i = 0; i < kN / 2; ++i) sums[i] = LoadGlobal(d + ThreadX() * (kN / 2) + i);
  FenceAsyncProxy();
  SyncThreads();
  const uint64_t a_all = MatrixDescriptor(a_rows, 16, 1024), b_all = MatrixDescriptor(b_rows, 16, 1024);
  PinRegisters(sums);
  WgmmaFence();
  TM_UNROLL
  for (int k = 0; k < kShownK / 16; ++k)
    WgmmaShared<kN>(sums, Advanced(a_all, k * 32), Advanced(b_all, k * 32), true);
  WgmmaCommit();
  WgmmaWait<0>();
  PinRegisters(sums);
  TM_UNROLL
  for (int i = 0; i < kN / 2; ++i) StoreGlobal(d + ThreadX() * (kN / 2) + i, sums[i]);
}

// b lies in parts of 64 columns, 8 KiB apart.
template <int kN>
TM_KERNEL void WgmmaRegistersKernel(const uint16_t* a, const uint16_t* b, float* d) {
  constexpr int kPartBytes = kShownK * kFragmentRowBytes;
  std::byte* b_rows = AlignedSharedBytes();
  for (int part = 0; part < kN / 64; ++part)
    StoreRows(b + part * 64, kN, kShownK, b_rows + part * kPartBytes);
  uint32_t fragment[kShownK / 16][4];
  TM_UNROLL
  for (int k = 0; k < kShownK / 16; ++k) {
    TM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = ThreadX() / 32 * 16 + LaneId() / 4 + i % 2 * 8;
      const int column = k * 16 + LaneId() % 4 * 2 + i / 2 * 8;
      fragment[k][i] = LoadGlobal(reinterpret_cast<const uint32_t*>(a + row * kShownK + column));
    }
  }
  float sums[kN / 2];
  TM_UNROLL
  for (int i = 0; i < kN / 2; ++i) sums[i] = LoadGlobal(d + ThreadX() * (kN / 2) + i);
  FenceAsyncProxy();
  SyncThreads();
  const uint64_t b_all = MatrixDescriptor(b_rows, kPartBytes, 1024);
  PinRegisters(sums);
  WgmmaFence();
  TM_UNROLL
  for (int k = 0; k < kShownK / 16; ++k)
    WgmmaRegisters<kN>(sums, fragment[k], Advanced(b_all, k * 16 * kFragmentRowBytes));
  WgmmaCommit();
  WgmmaWait<0>();
  PinRegisters(sums);
  TM_UNROLL
  for (int i = 0; i < kN / 2; ++i) StoreGlobal(d + ThreadX() * (kN / 2) + i, sums[i]);
}

TM_KERNEL void BoxKernel(const TM_GRID_CONSTANT ShownBox p) {
  std::byte* rows = AlignedSharedBytes();
  auto* full = reinterpret_cast<Mbarrier*>(rows + 128 * kFragmentRowBytes);
  for (int i = ThreadX(); i < 128 * 8; i += kFragmentThreads)
    StoreShared16(rows + i * 16, {{0xAAAAAAAAu, 0xAAAAAAAAu, 0xAAAAAAAAu, 0xAAAAAAAAu}});
  FenceAsyncProxy();
  if (ThreadX() == 0) {
    InitBarrier(full, 1);
    FenceBarrierInit();
  }
  SyncThreads();
  if (ThreadX() == 0) {
    ArriveExpecting(full, p.rows * kFragmentRowBytes);
    LoadBox(rows, p.map, full,
            {p.coordinates[0], p.coordinates[1], p.coordinates[2], p.coordinates[3], p.coordinates[4]});
  }
  WaitPhase(full, 0);
  for (int i = ThreadX(); i < p.rows * 8; i += kFragmentThreads)
    StoreGlobal16(p.out + i * 8, LoadShared16(rows + i * 16));
}

TM_KERNEL void TurnsKernel(int rounds, int32_t* out) {
  auto* place = reinterpret_cast<int32_t*>(AlignedSharedBytes());
  auto* written = reinterpret_cast<Mbarrier*>(AlignedSharedBytes() + 64);
  Mbarrier* read = written + 1;
  if (ThreadX() == 0) {
    InitBarrier(written, 1);
    InitBarrier(read, 1);
    FenceBarrierInit();
  }
  SyncThreads();
  if (ThreadX() == 0) {
    for (int round = 0; round < rounds; ++round) {
      WaitPhase(read, round % 2 ^ 1);
      *place = round * 3;
      Arrive(written);
    }
  } else if (ThreadX() == 32) {
    for (int round = 0; round < rounds; ++round) {
      WaitPhase(written, round % 2);
      StoreGlobal(out + round, *place);
      Arrive(read);
    }
  }
}

int ShowWgmmaShared(int n, const uint16_t* a, const uint16_t* b, float* d) {
  constexpr int kShared = (kShownRows + 128) * kFragmentRowBytes;
  return n == 64
             ? TM_LAUNCH(WgmmaSharedKernel<64>, Dim3{1}, Dim3{kFragmentThreads}, kShared, nullptr, a, b, d)
             : TM_LAUNCH(WgmmaSharedKernel<128>, Dim3{1}, Dim3{kFragmentThreads}, kShared, nullptr, a, b, d);
}
int ShowWgmmaRegisters(int n, const uint16_t* a, const uint16_t* b, float* d) {
  constexpr int kShared = 2 * kShownK * kFragmentRowBytes;
  return n == 64
             ? TM_LAUNCH(WgmmaRegistersKernel<64>, Dim3{1}, Dim3{kFragmentThreads}, kShared, nullptr, a, b, d)
             : TM_LAUNCH(WgmmaRegistersKernel<128>, Dim3{1}, Dim3{kFragmentThreads}, kShared, nullptr, a, b,
                         d);
}
int ShowBox(const ShownBox& box) {
  return TM_LAUNCH(BoxKernel, Dim3{1}, Dim3{kFragmentThreads}, 128 * kFragmentRowBytes + 64, nullptr, box);
}
int MakeShownMap(const TensorMapShape& shape, TensorMap* map) { return MakeTensorMap(shape, map); }
int ShowTurns(int rounds, int32_t* out) {
  return TM_LAUNCH(TurnsKernel, Dim3{1}, Dim3{64}, 128, nullptr, rounds, out);
}

}  // namespace tramontane::cuda
