// Kernels that show what the instructions of sm_90a do, one block each, all pointers device memory: as
// fragment_kernels.h, for hopper_primitives.cuh. 0 or the runtime's error.
#pragma once

#include <cstdint>

#include "kernels/cuda/tensor_map.h"

namespace tramontane::cuda {

inline constexpr int kShownK = 64;     // of the products
inline constexpr int kShownRows = 64;  // m of wgmma

// d [128 threads, n / 2] += a [64, kShownK] * b^T with b [n, kShownK], both row-major bf16, n 64 or 128;
// operands in shared memory, rows of b along k.
int ShowWgmmaShared(int n, const uint16_t* a, const uint16_t* b, float* d);
// The same with b [kShownK, n] (d += a * b): a in registers, rows of b along n.
int ShowWgmmaRegisters(int n, const uint16_t* a, const uint16_t* b, float* d);

// A box of [rows][64] as it lies in shared memory, over 0xAA bytes: out [rows * 64].
struct ShownBox {
  TensorMap map;
  int32_t coordinates[kTensorMapDimensions];
  int32_t rows;  // a multiple of 8, at most 128
  uint16_t* out;
};
int ShowBox(const ShownBox& box);
// What ShowBox needs: the host side of hopper_primitives.cuh.
int MakeShownMap(const TensorMapShape& shape, TensorMap* map);

// Two warps pass numbers through one place, `rounds` times, in turns that two barriers give them: out
// [rounds] is what the second one read. The first writes `round * 3`.
int ShowTurns(int rounds, int32_t* out);

}  // namespace tramontane::cuda
