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
inline constexpr int kSmallPieceK = 8;  // of a block, that a lane loads at once

// Sixteen rows of W by kEights times eight of x, 32 of k: w has rows g and g + 8, x the numbers 8t .. 8t + 7
// of rows g. Products that wait for each other have those of the other rows between them.
template <int kEights>
TM_DEVICE void MultiplyTiles(const Vector16 (&w)[2], const Vector16 (&x)[kEights], float (*sum)[4]) {
  TM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const uint32_t a_fragment[4] = {w[0].word[2 * half], w[1].word[2 * half], w[0].word[2 * half + 1],
                                    w[1].word[2 * half + 1]};
    TM_UNROLL
    for (int n = 0; n < kEights; ++n) Mma16816<Bf16>(sum[n], a_fragment, x[n].word + 2 * half);
  }
}
TM_DEVICE void MultiplyTile(const Vector16 (&w)[2], const Vector16& x, float (&sum)[4]) {
  const Vector16 one[1] = {x};
  MultiplyTiles(w, one, &sum);
}

inline constexpr int kSmallStages = 4;                         // blocks of W in flight per lane: 128 bytes
inline constexpr int kSmallStep = kSmallWarps * kSmallBlockK;  // numbers from a warp's block to its next one

// Which part of W a lane multiplies: rows g and g + 8 of sixteen. Of rows beyond the last one, whose outputs
// nobody stores, the last one's.
struct SmallRows {
  const Bf16* weight;  // [out_features, in_features]
  int first_out, out_features, in_features;

  // The lane's numbers in the warp's first block.
  TM_DEVICE const Bf16* Row(int i) const {
    const int64_t out = Min(first_out + LaneId() / 4 + 8 * i, out_features - 1);
    return weight + out * in_features + ThreadX() / 32 * kSmallBlockK + LaneId() % 4 * 8;
  }
  // Of the warp.
  TM_DEVICE int Blocks() const {
    return (in_features / kSmallBlockK - ThreadX() / 32 + kSmallWarps - 1) / kSmallWarps;
  }
};

// A lane's pieces of its warp's next blocks.
struct SmallWeights {
  Vector16 piece[kSmallStages][2];
};

// Of the warp's first blocks.
TM_DEVICE SmallWeights LoadSmallWeights(const SmallRows& rows) {
  const Bf16* const at[2] = {rows.Row(0), rows.Row(1)};
  SmallWeights w;
  TM_UNROLL
  for (int stage = 0; stage < kSmallStages; ++stage) {
    TM_UNROLL
    for (int i = 0; i < 2; ++i) {
      if (stage < rows.Blocks()) w.piece[stage][i] = LoadConstant16Once(at[i] + stage * kSmallStep);
    }
  }
  return w;
}

// w: the first blocks'. row: this lane's rows g, g + 8 of x, in shared memory or global; null where there is
// none. sum: of this warp's blocks of k. Whole turns have no condition but that of their last loads, each of
// which goes where its stage was multiplied from; what is left of a turn follows.
template <int kRowTiles, bool kSharedRows>
TM_DEVICE void MultiplySmallTile(const SmallRows& rows, SmallWeights w,
                                 const std::byte* const (&row)[kRowTiles], float (&sum)[kRowTiles][4]) {
  const Bf16* at[2] = {rows.Row(0), rows.Row(1)};
  int k = ThreadX() / 32 * kSmallBlockK + LaneId() % 4 * 8;
  const auto load_x = [&](int n, int stage) {
    Vector16 x = {};
    const std::byte* const from = row[n] + (k + stage * kSmallStep) * 2;
    if (row[n] != nullptr) x = kSharedRows ? LoadShared16(from) : LoadGlobal16(from);
    return x;
  };
  int blocks = rows.Blocks();
  TM_ROLLED
  for (; blocks >= kSmallStages; k += kSmallStages * kSmallStep) {
    blocks -= kSmallStages;
    TM_UNROLL
    for (int i = 0; i < 2; ++i) at[i] += kSmallStages * kSmallStep;
    Vector16 x[kSmallStages][kRowTiles];
    TM_UNROLL
    for (int stage = 0; stage < kSmallStages; ++stage) {
      TM_UNROLL
      for (int n = 0; n < kRowTiles; ++n) x[stage][n] = load_x(n, stage);
    }
    TM_UNROLL
    for (int stage = 0; stage < kSmallStages; ++stage) {
      TM_UNROLL
      for (int n = 0; n < kRowTiles; ++n) MultiplyTile(w.piece[stage], x[stage][n], sum[n]);
      TM_UNROLL
      for (int i = 0; i < 2; ++i) {
        if (stage < blocks) w.piece[stage][i] = LoadConstant16Once(at[i] + stage * kSmallStep);
      }
    }
  }
  TM_UNROLL
  for (int stage = 0; stage < kSmallStages - 1; ++stage) {
    if (stage >= blocks) continue;
    TM_UNROLL
    for (int n = 0; n < kRowTiles; ++n) MultiplyTile(w.piece[stage], load_x(n, stage), sum[n]);
  }
}

// The same of a row's end, where it is no whole block: by the warp whose turn it is, zeros beyond it. K is a
// multiple of 8.
template <int kRowTiles, bool kSharedRows>
TM_DEVICE void MultiplySmallRest(const SmallRows& rows, const std::byte* const (&row)[kRowTiles],
                                 float (&sum)[kRowTiles][4]) {
  const int blocks = rows.in_features / kSmallBlockK;
  if (rows.in_features % kSmallBlockK == 0 || ThreadX() / 32 != blocks % kSmallWarps) return;
  const int k = blocks * kSmallBlockK + LaneId() % 4 * 8;
  const bool live = k < rows.in_features;
  Vector16 w[2] = {};
  TM_UNROLL
  for (int i = 0; i < 2; ++i) {
    if (live) w[i] = LoadConstant16Once(rows.Row(i) + blocks / kSmallWarps * kSmallStep);
  }
  TM_UNROLL
  for (int n = 0; n < kRowTiles; ++n) {
    Vector16 x = {};
    if (live && row[n] != nullptr)
      x = kSharedRows ? LoadShared16(row[n] + k * 2) : LoadGlobal16(row[n] + k * 2);
    MultiplyTile(w, x, sum[n]);
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

// The same of codes: sums of 32, times the scales of both rows of W.
template <int kEights>
TM_DEVICE void MultiplyCodes(const Vector16 (&codes)[2], const Vector16 (&x)[kEights],
                             const float (&scale)[2], float (*sum)[4]) {
  float of_codes[kEights][4] = {};
  MultiplyTiles(codes, x, of_codes);
  TM_UNROLL
  for (int n = 0; n < kEights; ++n) {
    TM_UNROLL
    for (int i = 0; i < 4; ++i) sum[n][i] = MultiplyAdd(scale[i / 2], of_codes[n][i], sum[n][i]);
  }
}

// The same of types that scale sums: of units of 2^log2 tiles, or of rows of fp8 with these scales of its
// sixteen. A turn is kStages tiles, each of which is loaded where the one before it has been multiplied from;
// a tile that begins no unit has the scales of the one before. kUnitLog2: log2, but 2 of a longer unit, which
// takes several turns; so the compiler knows where a turn's tiles stand behind its first.
template <typename Type, int kRowTiles, bool kSharedRows, int kUnitLog2>
TM_DEVICE void MultiplySmallTurns(const std::byte* units, const Format& format,
                                  const std::byte* const (&row)[kRowTiles], int in_features,
                                  float (&sum)[kRowTiles][4], const float* row_scales) {
  constexpr int kStages = Type::kInGroups && kUnitLog2 < 2 ? 2 : 4, kUnits = kStages >> kUnitLog2;
  constexpr int kRunBytes = Type::kInRows ? kTileNumbers : Type::kLayout.run_bytes();
  constexpr int kTileBytes = kTileNumbers * 2;  // of a row of x
  const int lane = LaneId(), warp = ThreadX() / 32,
            log2 = kUnitLog2 < 2 ? kUnitLog2 : Type::TilesLog2(format);
  const int unit_bytes = Type::kInRows ? kRunBytes << log2 : Type::Layout(format).bytes();
  const auto in_unit = [&](int n) { return n & ((1 << log2) - 1); };  // of the warp's tile n

  const std::byte* at = units + int64_t{warp} * unit_bytes;
  if constexpr (Type::kInRows) at = Type::OfLane(at, in_features, lane);
  const std::byte* x_at[kRowTiles];
  bool live[kRowTiles];
  TM_UNROLL
  for (int i = 0; i < kRowTiles; ++i) {
    live[i] = row[i] != nullptr;
    const std::byte* any = kSharedRows ? SharedBytes() : units;  // for a row that is none, which nobody reads
    x_at[i] = (live[i] ? row[i] : any) + (warp * kTileBytes << log2) + lane % 4 * 16;
  }
  // From one turn to the next: within a unit, or to the warp's next one.
  const int turns_before = (1 << log2) - (1 << kUnitLog2);  // tiles of a unit before its last turn
  const int far = kUnits * kSmallWarps * unit_bytes - turns_before * kRunBytes;
  const int x_far = kUnits * kSmallWarps * (kTileBytes << log2) - turns_before * kTileBytes;

  typename Type::Run runs[kStages];
  typename Type::StoredScales stored[kStages];
  CodeScales scales = {};
  if constexpr (Type::kInRows) scales = Type::ForCodes(Type::LoadRowScales(row_scales, lane), format);
  const auto begins = [&](int n, int stage) {
    return !Type::kInRows && stage % (1 << kUnitLog2) == 0 && in_unit(n) == 0;
  };
  const auto load = [&](int n, int stage) {
    const std::byte* from = at + (stage >> kUnitLog2) * kSmallWarps * unit_bytes;
    const int tile = stage % (1 << kUnitLog2);
    if constexpr (Type::kInRows) {
      runs[stage] = Type::LoadTile(from, in_features, tile);
    } else {
      runs[stage] = Type::LoadRun(from, tile, lane);
      if (begins(n, stage)) stored[stage] = Type::LoadStoredScales(from, format, lane);
    }
  };
  const auto multiply = [&](int n, int stage) {
    if (begins(n, stage)) scales = Type::ForCodes(stored[stage], format);
    const Vector16 codes[2] = {Type::Codes(scales, runs[stage], 0), Type::Codes(scales, runs[stage], 1)};
    const int tile = ((stage >> kUnitLog2) * kSmallWarps << kUnitLog2) + stage % (1 << kUnitLog2);
    TM_UNROLL
    for (int i = 0; i < kRowTiles; ++i) {
      const std::byte* from = x_at[i] + tile * kTileBytes;
      Vector16 x[1] = {};
      if (live[i]) x[0] = kSharedRows ? LoadShared16(from) : LoadGlobal16(from);
      MultiplyCodes(codes, x, scales.scale, sum + i);
    }
  };

  // Of the warp's units w, w + 8, .., the last of which may end early.
  const int tiles = in_features / kTileNumbers, whole = tiles >> log2;
  int left = (whole + kSmallWarps - 1 - warp) / kSmallWarps << log2, n = 0;
  if (whole % kSmallWarps == warp) left += in_unit(tiles);
  TM_UNROLL
  for (int stage = 0; stage < kStages; ++stage) {
    if (stage < left) load(0, stage);
  }
  TM_ROLLED
  for (; left >= kStages; n += kStages) {
    left -= kStages;
    const bool next_unit = in_unit(n + kStages) == 0;
    at += next_unit ? far : kStages * kRunBytes;
    TM_UNROLL
    for (int stage = 0; stage < kStages; ++stage) {
      multiply(n, stage);
      if (stage < left) load(n + kStages, stage);
    }
    TM_UNROLL
    for (int i = 0; i < kRowTiles; ++i) x_at[i] += next_unit ? x_far : kStages * kTileBytes;
  }
  TM_UNROLL
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < left) multiply(n, stage);
  }
}

template <typename Type, int kRowTiles, bool kSharedRows>
TM_DEVICE void MultiplySmallScaled(const std::byte* units, const Format& format,
                                   const std::byte* const (&row)[kRowTiles], int in_features,
                                   float (&sum)[kRowTiles][4], const float* row_scales = nullptr) {
  const auto turns = [&]<int kUnitLog2>() {
    MultiplySmallTurns<Type, kRowTiles, kSharedRows, kUnitLog2>(units, format, row, in_features, sum,
                                                                row_scales);
  };
  if constexpr (!Type::kInGroups) {
    turns.template operator()<0>();
  } else {
    const int log2 = Type::TilesLog2(format);
    if (log2 >= 2) {
      turns.template operator()<2>();
    } else if (log2 == 1) {
      turns.template operator()<1>();
    } else {
      turns.template operator()<0>();
    }
  }
}

// The same of a weight in other blocks. units: those of W's sixteen rows.
template <typename Type, int kRowTiles, bool kSharedRows>
TM_DEVICE void MultiplySmallUnits(const std::byte* units, const std::byte* const (&row)[kRowTiles],
                                  int in_features, float (&sum)[kRowTiles][4]) {
  constexpr UnitLayout kLayout = Type::kLayout;
  constexpr int kRuns = kLayout.runs();
  constexpr int kInFlight = kRuns > 1 ? 1 : kLayout.low_bits == 8 ? 4 : 6;  // units of a lane
  const int warp = ThreadX() / 32, lane = LaneId(), t = lane % 4;
  const int count = in_features / kLayout.numbers();
  for (int first = warp; first < count; first += kSmallWarps * kInFlight) {
    typename Type::Scales scales[kInFlight];
    typename Type::Run runs[kInFlight][kRuns];
    TM_UNROLL
    for (int a = 0; a < kInFlight; ++a) {
      const int unit = first + a * kSmallWarps;
      if (unit >= count) continue;
      const std::byte* at = units + int64_t{unit} * kLayout.bytes();
      scales[a] = Type::LoadScales(at, Type::kType, lane);
      TM_UNROLL
      for (int r = 0; r < kRuns; ++r) runs[a][r] = Type::LoadRun(at, r, lane);
    }
    TM_UNROLL
    for (int a = 0; a < kInFlight; ++a) {
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
  if constexpr (Type::kScalesSums) {
    MultiplySmallScaled<Type, kRowTiles, kSharedRows>(units, format, row, in_features, sum);
  } else {
    MultiplySmallUnits<Type, kRowTiles, kSharedRows>(units, row, in_features, sum);
  }
}

// Where a warp's sum of an output of row r stands among its own: 8 numbers of nothing after each pair of
// rows, so that those which lanes write together, of every second row, are in different banks, and so are
// those they read, of two rows with all outputs or of four with half of them.
TM_HOST_DEVICE constexpr int SmallPartialAt(int r, int out) { return r * kSmallTileOut + r / 2 * 8 + out; }

template <int kRowTiles>
inline constexpr int kSmallWarpPartials = SmallPartialAt(kRowTiles * 8, 0);

// What StoreSmallPartials takes of shared memory.
template <int kRowTiles>
inline constexpr int kSmallPartialBytes = kSmallWarps * kSmallWarpPartials<kRowTiles> * 4;

// Every warp's sums to shared memory, [warps][kSmallWarpPartials]; the block waits.
template <int kRowTiles>
TM_DEVICE void StoreSmallPartials(const float (&sum)[kRowTiles][4], float* partial) {
  const int warp = ThreadX() / 32, g = LaneId() / 4, t = LaneId() % 4;
  TM_UNROLL
  for (int n = 0; n < kRowTiles; ++n) {
    TM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int out = g + 8 * (i / 2), r = n * 8 + 2 * t + i % 2;
      StoreShared(partial + warp * kSmallWarpPartials<kRowTiles> + SmallPartialAt(r, out), sum[n][i]);
    }
  }
  SyncThreads();
}

// The whole sum of one output, warps in order.
template <int kRowTiles>
TM_DEVICE float SmallTotal(const float* partial, int r, int out) {
  float value = 0.0f;
  TM_UNROLL
  for (int w = 0; w < kSmallWarps; ++w) {
    value += LoadShared(partial + w * kSmallWarpPartials<kRowTiles> + SmallPartialAt(r, out));
  }
  return value;
}

}  // namespace tramontane::cuda
