// Weights in blocks, or in rows of fp8, as bf16: decode_weight.h.
//
// Shapes: W [rows, K] in blocks (blocks.h), or e4m3 in rows; out [rows filled up to sixteens, K] bf16.
// Grid:   one-dimensional, blocks of 8 warps. A warp takes 16 rows by a span of K: four runs, which are a
//         unit of q4_k, q5_k and q6_k and four tiles of the others. The last block may have warps to spare.
// Bytes:  reads W in the bits of linear_small.cu, of groups of more than four tiles their scales once more
//         for each four tiles behind the first; of fp8 in rows rows * K, and 64 of scales for 16 rows by
//         four tiles. Writes 2 for each number of rows filled up to sixteens.
// Limits: as linear_tile.cu. Bound by memory: 2 bytes are written for what 0.5 to 1 were read for, and the
//         product behind it reads them from the L2 cache.
// Math:   each number is its f32 rounded once to bf16, by the same function as in linear_tile.cu.
// Ideas:  all loads of a span before the first number is decoded; 16-byte stores, of which four lanes fill
//         two whole sectors of a row.
#include "kernels/cuda/decode_weight.h"

#include "kernels/cuda/blocks.cuh"
#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kSpanRuns = 4;

template <typename Type>
constexpr int kSpanTiles = kSpanRuns * Type::kRunTiles;

// What a lane holds of a span.
template <typename Type>
struct Span {
  // Units of several runs are a span each, or are longer: one of scales. Else each run has its own.
  static constexpr int kScales = Type::kRunTiles > 1 ? 1 : kSpanRuns;

  typename Type::Scales scales[kScales];
  typename Type::Run run[kSpanRuns];

  // Of sixteen rows of fp8.
  TM_DEVICE void LoadTiles(const std::byte* rows, const float* row_scales, int in_features, int first,
                           int tiles) {
    const StoredGroupScales stored = Type::LoadRowScales(row_scales, LaneId());
    scales[0] = {{FloatOf(stored.word[0]), FloatOf(stored.word[1])}, {}};
    const std::byte* const of_lane = Type::OfLane(rows, in_features, LaneId());
    TM_UNROLL
    for (int i = 0; i < kSpanRuns; ++i) {
      scales[i] = scales[0];
      if (first + i < tiles) run[i] = Type::LoadTile(of_lane, in_features, first + i);
    }
  }

  // units: of sixteen rows, `tiles` tiles along K; the span begins at tile `first`, which is one of them.
  // Scales come last: what groups have is converted at once, which waits for it.
  TM_DEVICE void Load(const std::byte* units, const Format& format, int first, int tiles) {
    const int log2 = Type::TilesLog2(format), unit_bytes = Type::Layout(format).bytes();
    const auto unit_of = [&](int tile) { return units + int64_t{tile >> log2} * unit_bytes; };
    const int in_unit = (1 << log2) - 1;
    TM_UNROLL
    for (int i = 0; i < kSpanRuns; ++i) {
      const int tile = first + i * Type::kRunTiles;
      if (tile < tiles) run[i] = Type::LoadRun(unit_of(tile), (tile & in_unit) / Type::kRunTiles, LaneId());
    }
    scales[0] = Type::LoadScales(unit_of(first), format, LaneId());
    TM_UNROLL
    for (int i = 1; i < kScales; ++i) {
      const int tile = first + i;
      if (tile >= tiles) continue;
      scales[i] = (tile & in_unit) == 0 ? Type::LoadScales(unit_of(tile), format, LaneId()) : scales[i - 1];
    }
  }
};

}  // namespace

template <typename Type>
TM_KERNEL TM_BOUNDS(kWarps * 32) void DecodeWeightKernel(DecodeWeightParams p) {
  AwaitPriorKernels();
  const int tiles = p.in_features / kTileNumbers, spans = (tiles + kSpanTiles<Type> - 1) / kSpanTiles<Type>;
  const int warp = BlockX() * kWarps + ThreadX() / 32;
  const int rows16 = warp / spans, first = warp % spans * kSpanTiles<Type>;
  if (rows16 * kUnitRows >= p.rows) return;
  const auto* units =
      static_cast<const std::byte*>(p.weight) + rows16 * BytesOfUnitRows<Type>(p.format, p.in_features);
  Span<Type> span;
  if constexpr (Type::kInRows) {
    span.LoadTiles(units, p.row_scales + rows16 * kUnitRows, p.in_features, first, tiles);
  } else {
    span.Load(units, p.format, first, tiles);
  }
  const int g = LaneId() / 4, t = LaneId() % 4;
  auto* out = static_cast<Bf16*>(p.out) + int64_t{rows16 * kUnitRows + g} * p.in_features +
              first * kTileNumbers + 8 * t;
  TM_UNROLL
  for (int tile = 0; tile < kSpanTiles<Type>; ++tile) {
    if (first + tile >= tiles) continue;
    const int run = tile / Type::kRunTiles;
    const auto& scales = span.scales[Span<Type>::kScales > 1 ? run : 0];
    TM_UNROLL
    for (int half = 0; half < 2; ++half) {
      StoreGlobal16(out + half * (int64_t{8} * p.in_features) + tile * kTileNumbers,
                    Type::Decode(scales, span.run[run], Type::kRunTiles > 1 ? tile : 0, half, t));
    }
  }
}

int LaunchDecodeWeight(const DecodeWeightParams& p, void* stream) {
  const auto launch = [&]<typename Type>(Type) {
    const int32_t tiles = p.in_features / kTileNumbers,
                  spans = (tiles + kSpanTiles<Type> - 1) / kSpanTiles<Type>;
    const int32_t warps = (p.rows + kUnitRows - 1) / kUnitRows * spans;
    const Dim3 grid{static_cast<unsigned>((warps + kWarps - 1) / kWarps), 1, 1};
    return TM_LAUNCH(DecodeWeightKernel<Type>, grid, Dim3{kWarps * 32}, 0, static_cast<Stream>(stream), p);
  };
  return p.row_scales != nullptr ? launch(Fp8Rows()) : WithBlocks(p.format.dtype, launch);
}

}  // namespace tramontane::cuda
