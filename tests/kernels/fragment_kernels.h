// Kernels that show what the wrapped instructions of primitives.cuh do, one warp each, all pointers device
// memory. The emulator's reading of them and a GPU's are held to the same expectations by fragment_test.cc. 0
// or the runtime's error.
#pragma once

#include <cstdint>

namespace tramontane::cuda {

// What LoadMatrix4 (or ...Transposed) gives each lane for four 8x8 matrices of 16-bit elements.
// matrices: [4, 8, 8]; out: [32 lanes, 4].
int ShowLoadMatrix(const uint16_t* matrices, bool transposed, uint32_t* out);
// c [32 lanes, 4] += a [32, 4] * b [32, 2], fragments as Mma16816 takes them.
int ShowMmaBf16(const uint32_t* a, const uint32_t* b, float* c);
int ShowMmaF16(const uint32_t* a, const uint32_t* b, float* c);
// out[lane] = in[lane ^ mask].
int ShowShuffleXor(const float* in, int mask, float* out);
// out[lane] = in[lane - delta], or in[lane] for lane < delta.
int ShowShuffleUp(const uint64_t* in, int delta, uint64_t* out);
// 32 values: bf16 and f16 roundings packed in pairs (value, value of the next lane), and back to f32.
// packed: [32, 2]; unpacked: [32, 2].
int ShowRoundings(const float* in, uint32_t* packed, float* unpacked);
// Copies `bytes` of 16 and zeroes the rest, over 0xAA; out: [16] bytes.
int ShowCopyAsync(const uint8_t* in, int bytes, uint8_t* out);
// out: [32, 3]: Exp2, Log2 and ReciprocalSqrt of 32 values.
int ShowApproximations(const float* in, float* out);

}  // namespace tramontane::cuda
