// Test kernels, one warp each. Shapes and meaning: fragment_kernels.h.
#include "tests/kernels/fragment_kernels.h"

#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

template <bool kTransposed>
TM_KERNEL void LoadMatrixKernel(const uint16_t* matrices, uint32_t* out) {
  auto* shared = reinterpret_cast<uint16_t*>(SharedBytes());
  for (int i = 0; i < 8; ++i) shared[LaneId() * 8 + i] = LoadGlobal(matrices + LaneId() * 8 + i);
  SyncThreads();
  uint32_t fragment[4];
  if (kTransposed) {
    LoadMatrix4Transposed(fragment, shared + LaneId() * 8);
  } else {
    LoadMatrix4(fragment, shared + LaneId() * 8);
  }
  for (int i = 0; i < 4; ++i) StoreGlobal(out + LaneId() * 4 + i, fragment[i]);
}

template <typename T>
TM_KERNEL void MmaKernel(const uint32_t* a, const uint32_t* b, float* c) {
  uint32_t a_fragment[4], b_fragment[2];
  float sum[4];
  for (int i = 0; i < 4; ++i) a_fragment[i] = LoadGlobal(a + LaneId() * 4 + i);
  for (int i = 0; i < 2; ++i) b_fragment[i] = LoadGlobal(b + LaneId() * 2 + i);
  for (int i = 0; i < 4; ++i) sum[i] = LoadGlobal(c + LaneId() * 4 + i);
  Mma16816<T>(sum, a_fragment, b_fragment);
  for (int i = 0; i < 4; ++i) StoreGlobal(c + LaneId() * 4 + i, sum[i]);
}

TM_KERNEL void ShuffleXorKernel(const float* in, int mask, float* out) {
  StoreGlobal(out + LaneId(), ShuffleXor(LoadGlobal(in + LaneId()), mask));
}

TM_KERNEL void ShuffleUpKernel(const uint64_t* in, int delta, uint64_t* out) {
  StoreGlobal(out + LaneId(), ShuffleUp(LoadGlobal(in + LaneId()), delta));
}

TM_KERNEL void RoundingsKernel(const float* in, uint32_t* packed, float* unpacked) {
  const float low = LoadGlobal(in + LaneId()), high = LoadGlobal(in + (LaneId() + 1) % 32);
  StoreGlobal(packed + LaneId() * 2, PackPair<Bf16>(low, high));
  StoreGlobal(packed + LaneId() * 2 + 1, PackPair<F16>(low, high));
  StoreGlobal(unpacked + LaneId() * 2, ToFloat(FromFloat<Bf16>(low)));
  StoreGlobal(unpacked + LaneId() * 2 + 1, ToFloat(FromFloat<F16>(low)));
}

TM_KERNEL void CopyAsyncKernel(const uint8_t* in, int bytes, uint8_t* out) {
  auto* shared = reinterpret_cast<uint8_t*>(SharedBytes());
  if (LaneId() < 16) shared[LaneId()] = 0xAA;
  SyncThreads();
  if (LaneId() == 0) CopyAsync16(shared, in, bytes);
  CopyCommit();
  CopyWait<0>();
  SyncThreads();
  if (LaneId() < 16) StoreGlobal(out + LaneId(), shared[LaneId()]);
}

TM_KERNEL void ApproximationsKernel(const float* in, float* out) {
  const float x = LoadGlobal(in + LaneId());
  StoreGlobal(out + LaneId() * 3, Exp2(x));
  StoreGlobal(out + LaneId() * 3 + 1, Log2(x));
  StoreGlobal(out + LaneId() * 3 + 2, ReciprocalSqrt(x));
}

int ShowLoadMatrix(const uint16_t* matrices, bool transposed, uint32_t* out) {
  constexpr int kSharedBytes = 4 * 8 * 8 * 2;
  return transposed
             ? TM_LAUNCH(LoadMatrixKernel<true>, Dim3{1}, Dim3{32}, kSharedBytes, nullptr, matrices, out)
             : TM_LAUNCH(LoadMatrixKernel<false>, Dim3{1}, Dim3{32}, kSharedBytes, nullptr, matrices, out);
}
int ShowMmaBf16(const uint32_t* a, const uint32_t* b, float* c) {
  return TM_LAUNCH(MmaKernel<Bf16>, Dim3{1}, Dim3{32}, 0, nullptr, a, b, c);
}
int ShowMmaF16(const uint32_t* a, const uint32_t* b, float* c) {
  return TM_LAUNCH(MmaKernel<F16>, Dim3{1}, Dim3{32}, 0, nullptr, a, b, c);
}
int ShowShuffleXor(const float* in, int mask, float* out) {
  return TM_LAUNCH(ShuffleXorKernel, Dim3{1}, Dim3{32}, 0, nullptr, in, mask, out);
}
int ShowShuffleUp(const uint64_t* in, int delta, uint64_t* out) {
  return TM_LAUNCH(ShuffleUpKernel, Dim3{1}, Dim3{32}, 0, nullptr, in, delta, out);
}
int ShowRoundings(const float* in, uint32_t* packed, float* unpacked) {
  return TM_LAUNCH(RoundingsKernel, Dim3{1}, Dim3{32}, 0, nullptr, in, packed, unpacked);
}
int ShowCopyAsync(const uint8_t* in, int bytes, uint8_t* out) {
  return TM_LAUNCH(CopyAsyncKernel, Dim3{1}, Dim3{32}, 16, nullptr, in, bytes, out);
}
int ShowApproximations(const float* in, float* out) {
  return TM_LAUNCH(ApproximationsKernel, Dim3{1}, Dim3{32}, 0, nullptr, in, out);
}

}  // namespace tramontane::cuda
