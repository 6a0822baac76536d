// How a block of 8 warps multiplies 16 rows of a weight with up to 16 rows of x: the loop that a linear layer
// of few rows (linear_small.cu) and an expert of few rows (moe.cu) share. Device code.
//
// How k is dealt: a block of 32 feeds two mma. Lane (g, t) loads k = 8t .. 8t+7 of W's rows g and g+8 and of
// x's row g: words 0 and 1 are the fragments' low and high halves of the first mma, words 2 and 3 of the
// second. Warp w takes blocks w, w + 8, ...; the warps' sums are added in their order.
#pragma once

#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

inline constexpr int kSmallWarps = 8;
inline constexpr int kSmallTileOut = 16;
inline constexpr int kSmallBlockK = 32;

TM_DEVICE float Silu(float x) { return x / (1.0f + Exp2(-1.4426950408889634f * x)); }

// weight: this lane's rows g and g + 8 of W; row: its rows g, g + 8 of x, in shared memory or global; null
// where there is none. sum: of this warp's blocks of k.
template <int kRowTiles, bool kSharedRows>
TM_DEVICE void MultiplySmallTile(const Bf16* const (&weight)[2], const std::byte* const (&row)[kRowTiles],
                                 int in_features, float (&sum)[kRowTiles][4]) {
  constexpr int kAhead = 4;  // blocks of W in flight per lane: 128 bytes
  const int warp = ThreadX() / 32, t = LaneId() % 4;
  const int blocks = in_features / kSmallBlockK;
  for (int first = warp; first < blocks; first += kSmallWarps * kAhead) {
    Vector16 w[kAhead][2] = {};
    TM_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      const int k = (first + a * kSmallWarps) * kSmallBlockK + 8 * t;
      TM_UNROLL
      for (int i = 0; i < 2; ++i) {
        if (first + a * kSmallWarps < blocks && weight[i] != nullptr)
          w[a][i] = LoadGlobal16Once(weight[i] + k);
      }
    }
    TM_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      const int k = (first + a * kSmallWarps) * kSmallBlockK + 8 * t;
      TM_UNROLL
      for (int n = 0; n < kRowTiles; ++n) {
        Vector16 x = {};
        if (first + a * kSmallWarps < blocks && row[n] != nullptr) {
          x = kSharedRows ? LoadShared16(row[n] + k * 2) : LoadGlobal16(row[n] + k * 2);
        }
        TM_UNROLL
        for (int half = 0; half < 2; ++half) {
          const uint32_t a_fragment[4] = {w[a][0].word[2 * half], w[a][1].word[2 * half],
                                          w[a][0].word[2 * half + 1], w[a][1].word[2 * half + 1]};
          Mma16816<Bf16>(sum[n], a_fragment, x.word + 2 * half);
        }
      }
    }
  }
}

// What StoreSmallPartials takes of shared memory.
template <int kRowTiles>
inline constexpr int kSmallPartialBytes = kSmallWarps * kRowTiles * 8 * kSmallTileOut * 4;

// Every warp's sums to shared memory, [warps][rows][16 outputs]; the block waits.
template <int kRowTiles>
TM_DEVICE void StoreSmallPartials(const float (&sum)[kRowTiles][4], float* partial) {
  const int warp = ThreadX() / 32, g = LaneId() / 4, t = LaneId() % 4;
  TM_UNROLL
  for (int n = 0; n < kRowTiles; ++n) {
    TM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int out = g + 8 * (i / 2), r = n * 8 + 2 * t + i % 2;
      partial[(warp * kRowTiles * 8 + r) * kSmallTileOut + out] = sum[n][i];
    }
  }
  SyncThreads();
}

// The whole sum of one output, warps in order.
template <int kRowTiles>
TM_DEVICE float SmallTotal(const float* partial, int r, int out) {
  float value = 0.0f;
  TM_UNROLL
  for (int w = 0; w < kSmallWarps; ++w) value += partial[(w * kRowTiles * 8 + r) * kSmallTileOut + out];
  return value;
}

}  // namespace tramontane::cuda
