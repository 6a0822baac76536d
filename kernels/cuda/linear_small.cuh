// How a block of 8 warps multiplies 16 rows of a weight with up to 16 rows of x: the loop that a linear layer
// of few rows (linear_small.cu) and an expert of few rows (moe.cu) share. Device code.
//
// How k is dealt: a block of 32 feeds two mma. Lane (g, t) loads k = 8t .. 8t+7 of W's rows g and g+8 and of
// x's row g: words 0 and 1 are the fragments' low and high halves of the first mma, words 2 and 3 of the
// second. Warp w takes blocks w, w + 8, ...; the warps' sums are added in their order. Of a weight in blocks
// (blocks.h) it takes units w, w + 8, ..., whose tiles are dealt in the same way.
#pragma once

#include "kernels/cuda/blocks.cuh"
#include "kernels/cuda/primitives.cuh"
#include "kernels/cuda/silu.cuh"

namespace tramontane::cuda {

inline constexpr int kSmallWarps = 8;
inline constexpr int kSmallTileOut = 16;
inline constexpr int kSmallBlockK = 32;

// Sixteen rows of W by eight of x, 32 of k: w has rows g and g + 8, x the numbers 8t .. 8t + 7 of row g.
TM_DEVICE void MultiplyTile(const Vector16 (&w)[2], const Vector16& x, float (&sum)[4]) {
  TM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const uint32_t a_fragment[4] = {w[0].word[2 * half], w[1].word[2 * half], w[0].word[2 * half + 1],
                                    w[1].word[2 * half + 1]};
    Mma16816<Bf16>(sum, a_fragment, x.word + 2 * half);
  }
}

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
        MultiplyTile(w[a], x, sum[n]);
      }
    }
  }
}

// This lane's numbers of rows of x from k on, by its rows of W.
template <int kRowTiles, bool kSharedRows>
TM_DEVICE void MultiplyRows(const Vector16 (&w)[2], const std::byte* const (&row)[kRowTiles], int k,
                            float (&sum)[kRowTiles][4]) {
  TM_UNROLL
  for (int n = 0; n < kRowTiles; ++n) {
    Vector16 x = {};
    if (row[n] != nullptr) x = kSharedRows ? LoadShared16(row[n] + k * 2) : LoadGlobal16(row[n] + k * 2);
    MultiplyTile(w, x, sum[n]);
  }
}

// The same of a weight in groups. A warp's tiles are those of its units one after the other, and a tile that
// begins no unit has the scales of the one before.
template <typename Type, int kRowTiles, bool kSharedRows>
TM_DEVICE void MultiplySmallGroups(const std::byte* units, const Format& format,
                                   const std::byte* const (&row)[kRowTiles], int in_features,
                                   float (&sum)[kRowTiles][4]) {
  constexpr int kAhead = Type::kLayout.low_bits == 8 ? 4 : 6;  // tiles in flight per lane
  const int warp = ThreadX() / 32, lane = LaneId(), t = lane % 4;
  const int log2 = Type::TilesLog2(format), in_unit = (1 << log2) - 1;
  const int unit_bytes = Type::Layout(format).bytes(), tiles = in_features / kTileNumbers;
  typename Type::Scales last = {};
  for (int first = 0; (((first >> log2) * kSmallWarps + warp) << log2 | (first & in_unit)) < tiles;
       first += kAhead) {
    typename Type::Scales scales[kAhead];
    typename Type::Run runs[kAhead];
    int tile[kAhead];
    TM_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      tile[a] = (((first + a) >> log2) * kSmallWarps + warp) << log2 | ((first + a) & in_unit);
      if (tile[a] >= tiles) continue;
      runs[a] = Type::LoadRun(units + int64_t{tile[a] >> log2} * unit_bytes, tile[a] & in_unit, lane);
    }
    TM_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      if (tile[a] >= tiles) continue;
      if ((tile[a] & in_unit) == 0) {
        last = Type::LoadScales(units + int64_t{tile[a] >> log2} * unit_bytes, format, lane);
      }
      scales[a] = last;
    }
    TM_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      if (tile[a] >= tiles) continue;
      const Vector16 w[2] = {Type::Decode(scales[a], runs[a], 0, 0, t),
                             Type::Decode(scales[a], runs[a], 0, 1, t)};
      MultiplyRows<kRowTiles, kSharedRows>(w, row, tile[a] * kTileNumbers + 8 * t, sum);
    }
  }
}

// The same of a weight in other blocks. units: those of W's sixteen rows.
template <typename Type, int kRowTiles, bool kSharedRows>
TM_DEVICE void MultiplySmallUnits(const std::byte* units, const std::byte* const (&row)[kRowTiles],
                                  int in_features, float (&sum)[kRowTiles][4]) {
  constexpr UnitLayout kLayout = Type::kLayout;
  constexpr int kRuns = kLayout.runs();
  constexpr int kAhead = kRuns > 1 ? 1 : kLayout.low_bits == 8 ? 4 : 6;  // units in flight per lane
  const int warp = ThreadX() / 32, lane = LaneId(), t = lane % 4;
  const int count = in_features / kLayout.numbers();
  for (int first = warp; first < count; first += kSmallWarps * kAhead) {
    typename Type::Scales scales[kAhead];
    typename Type::Run runs[kAhead][kRuns];
    TM_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      const int unit = first + a * kSmallWarps;
      if (unit >= count) continue;
      const std::byte* at = units + int64_t{unit} * kLayout.bytes();
      scales[a] = Type::LoadScales(at, Type::kType, lane);
      TM_UNROLL
      for (int r = 0; r < kRuns; ++r) runs[a][r] = Type::LoadRun(at, r, lane);
    }
    TM_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      const int unit = first + a * kSmallWarps;
      if (unit >= count) continue;
      TM_UNROLL
      for (int tile = 0; tile < kLayout.tiles; ++tile) {
        const int k = unit * kLayout.numbers() + tile * kTileNumbers + 8 * t;
        const typename Type::Run& run = runs[a][tile / kLayout.run_tiles];
        const Vector16 w[2] = {Type::Decode(scales[a], run, tile, 0, t),
                               Type::Decode(scales[a], run, tile, 1, t)};
        MultiplyRows<kRowTiles, kSharedRows>(w, row, k, sum);
      }
    }
  }
}

template <typename Type, int kRowTiles, bool kSharedRows>
TM_DEVICE void MultiplySmallBlocks(const std::byte* units, const Format& format,
                                   const std::byte* const (&row)[kRowTiles], int in_features,
                                   float (&sum)[kRowTiles][4]) {
  if constexpr (Type::kInGroups) {
    MultiplySmallGroups<Type, kRowTiles, kSharedRows>(units, format, row, in_features, sum);
  } else {
    MultiplySmallUnits<Type, kRowTiles, kSharedRows>(units, row, in_features, sum);
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
