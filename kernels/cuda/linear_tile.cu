// Linear layers over weights in blocks for more rows than linear_small.cu takes, and those of experts: y = x
// W^T, tiles of 64 rows of x in shared memory, W decoded in registers, so that no copy of it in bf16 exists.
// Each tile decodes W anew: rows for which that is dearer than a copy go by decode_weight.h.
//
// Shapes: x [rows, K] bf16; W [N, K] in blocks (blocks.h), or fp8 in rows; out [rows, N] bf16 or f32 (N / 2
//         for SwiGLU).
//         Rows of x and of out are those of one matrix in order, or of an expert from the lists of moe.cu.
// Grid:   (ceil(N / 16 warps), tiles of 64 rows), blocks of 2, 4 or 8 warps: as many as leave the device
//         enough blocks. A warp makes 16 outputs for all rows of a tile, over the whole of K in order.
// Bytes:  a block reads the units of its 16 outputs a warp (in the bits of linear_small.cu; of fp8 in rows
//         and 64 of scales), and for a tile of R rows R * K * 2 of x; of experts 12, and R * 4 where any are
//         there; for kAddResidual, and onto a gate, what it writes. It writes R * 16 outputs a warp (8 for
//         SwiGLU) of 2 or 4 bytes, fewer in the last block.
// Limits: K whole units, of groups whole tiles; N any, for SwiGLU a multiple of 16; sm_80 and later.
// Math:   as in linear_small.cu; the order of sums is another, and does not depend on the warps of a block.
// Ideas:  x in three buffers by asynchronous copies (as moe.cu); a warp owns its outputs, so what it decodes
//         goes straight into its mma, and nobody else needs it in shared memory; W of the next step is loaded
//         meanwhile (Marlin). The order of k within a tile is that of linear_small.cuh. Two blocks of 8 warps
//         to a multiprocessor, not three, leave the registers for the products of 32 rows under way at once.
#include "kernels/cuda/linear_tile.h"

#include "kernels/cuda/linear_small.cuh"
#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

namespace {

constexpr int kMostWarps = 8;
constexpr int kLeastWarps = 2;
constexpr int kBlocksWanted = 256;  // two for each multiprocessor of the devices that this is made for
constexpr int kStepTiles = 2;
constexpr int kStepK = kStepTiles * kTileNumbers;
constexpr int kStages = 3;
constexpr int kStageBytes = kTileLinearRows * kStepK * 2;
constexpr int kSharedBytes = kStages * kStageBytes + kTileLinearRows * 12;  // RowsOfTile

// Where a 16-byte chunk of a row stands: two rows by four chunks, which eight lanes read at once, are in all
// banks.
TM_DEVICE int ChunkAt(int row, int chunk) { return row * kStepK * 2 + (chunk ^ (row & 1) << 2) * 16; }

// The rows of a block's tile, in shared memory behind the buffers.
struct RowsOfTile {
  const Bf16* from[kTileLinearRows];  // of x
  int32_t places[kTileLinearRows];
};
static_assert(sizeof(RowsOfTile) == kTileLinearRows * 12);

TM_DEVICE RowsOfTile* TileRows() {
  return reinterpret_cast<RowsOfTile*>(SharedBytes() + kStages * kStageBytes);
}

// Finds them, and fills those that are none, which nobody copies, with zeros. The block waits.
TM_DEVICE void FindRows(const TileLinearParams& p, int begin, int rows) {
  RowsOfTile* const found = TileRows();
  for (int i = ThreadX(); i < rows; i += BlockSizeX()) {
    const int place = p.order == nullptr ? begin + i : LoadGlobal(p.order + begin + i);
    found->places[i] = place;
    found->from[i] = static_cast<const Bf16*>(p.x) + place / p.places_of_a_row * p.x_stride;
  }
  for (int stage = 0; stage < kStages; ++stage) {
    std::byte* buffer = SharedBytes() + stage * kStageBytes;
    for (int at = rows * kStepK * 2 + ThreadX() * 16; at < kStageBytes; at += BlockSizeX() * 16) {
      StoreShared16(buffer + at, {});
    }
  }
  SyncThreads();
}

// Rows of x at k = [step * kStepK, ..) into a buffer; zeros beyond K. A thread has the same chunk of its
// rows, which are an even number apart.
TM_DEVICE void LoadRows(const TileLinearParams& p, int rows, int step, std::byte* to) {
  constexpr int kChunks = kStepK / 8;
  const int chunk = ThreadX() % kChunks, k = step * kStepK + chunk * 8;
  const int first = ThreadX() / kChunks, apart = BlockSizeX() / kChunks;
  std::byte* at = to + ChunkAt(first, chunk);
  for (int r = first; r < rows; r += apart) {
    if (k < p.in_features) {
      CopyAsync16(at, TileRows()->from[r] + k, 16);
    } else {
      StoreShared16(at, {});
    }
    at += apart * kStepK * 2;
  }
}

// What a lane holds of W for one step: one run of two tiles, or two units of one.
template <typename Type>
struct StepOfWeight {
  static constexpr int kUnits = kStepTiles / Type::kRunTiles;

  typename Type::StoredScales scales[kUnits];
  typename Type::Run run[kUnits];

  // Of fp8 in rows.
  TM_DEVICE void LoadTiles(const std::byte* rows, int in_features, int step, int tiles) {
    TM_UNROLL
    for (int i = 0; i < kUnits; ++i) {
      const int tile = step * kStepTiles + i;
      if (tile < tiles) run[i] = Type::LoadTile(Type::OfLane(rows, in_features, LaneId()), in_features, tile);
    }
  }

  // units: of the warp's 16 rows, `tiles` tiles along K. A tile that begins no unit loads no scales.
  TM_DEVICE void Load(const std::byte* units, const Format& format, int step, int tiles) {
    const int log2 = Type::TilesLog2(format), unit_bytes = Type::Layout(format).bytes();
    TM_UNROLL
    for (int i = 0; i < kUnits; ++i) {
      const int tile = step * kStepTiles + i, in_unit = tile & ((1 << log2) - 1);
      if (tile >= tiles) continue;
      const std::byte* unit = units + int64_t{tile >> log2} * unit_bytes;
      run[i] = Type::LoadRun(unit, in_unit / Type::kRunTiles, LaneId());
      if (in_unit == 0) scales[i] = Type::LoadStoredScales(unit, format, LaneId());
    }
  }
};

// A tile's 32 of k of rows of x, by function(x, n) for kEightsAtOnce eights from the n-th on. Half of all
// rows follow without a question; those that are none are zeros.
constexpr int kEights = kTileLinearRows / 8, kEightsAtOnce = 4;
template <typename Function>
TM_DEVICE void WithRowsOfTile(const std::byte* buffer, int tile, int rows, const Function& function) {
  const int g = LaneId() / 4, t = LaneId() % 4;
  TM_UNROLL
  for (int half = 0; half < kEights; half += kEights / 2) {
    if (half * 8 >= rows) continue;
    TM_UNROLL
    for (int first = half; first < half + kEights / 2; first += kEightsAtOnce) {
      Vector16 x[kEightsAtOnce];
      TM_UNROLL
      for (int n = 0; n < kEightsAtOnce; ++n) {
        x[n] = LoadShared16(buffer + ChunkAt((first + n) * 8 + g, tile * 4 + t));
      }
      function(x, first);
    }
  }
}

// One buffer's products: this warp's 16 outputs by all rows. kStep: the step within a unit. scales: of types
// that scale sums, those of the unit so far.
template <typename Type, int kStep>
TM_DEVICE void MultiplyStep(const StepOfWeight<Type>& weight, const Format& format, const std::byte* buffer,
                            int step, int tiles, int rows, CodeScales* scales, float (&sum)[kEights][4]) {
  const int t = LaneId() % 4;
  TM_UNROLL
  for (int i = 0; i < kStepTiles; ++i) {
    if (step * kStepTiles + i >= tiles) continue;
    constexpr int kUnits = StepOfWeight<Type>::kUnits;
    const int set = kUnits == 1 ? 0 : i, tile = kUnits == 1 ? kStep * kStepTiles + i : 0;
    if constexpr (Type::kScalesSums) {
      const int in_unit = (step * kStepTiles + i) & ((1 << Type::TilesLog2(format)) - 1);
      if (!Type::kInRows && in_unit == 0) *scales = Type::ForCodes(weight.scales[set], format);
      const Vector16 codes[2] = {Type::Codes(*scales, weight.run[set], 0),
                                 Type::Codes(*scales, weight.run[set], 1)};
      WithRowsOfTile(buffer, i, rows, [&](const Vector16(&x)[kEightsAtOnce], int n) {
        MultiplyCodes(codes, x, scales->scale, sum + n);
      });
    } else {
      const Vector16 w[2] = {Type::Decode(weight.scales[set], weight.run[set], tile, 0, t),
                             Type::Decode(weight.scales[set], weight.run[set], tile, 1, t)};
      WithRowsOfTile(buffer, i, rows,
                     [&](const Vector16(&x)[kEightsAtOnce], int n) { MultiplyTiles(w, x, sum + n); });
    }
  }
}

TM_DEVICE void StoreOutput(const TileLinearParams& p, int64_t place, int out, float value) {
  if (out >= p.out_features) return;
  const int64_t at = place * p.out_stride + out;
  if (p.out_dtype == DType::kF32) {
    StoreGlobal(static_cast<float*>(p.out) + at, value);
    return;
  }
  Bf16* to = static_cast<Bf16*>(p.out) + at;
  if (p.epilogue == Epilogue::kAddResidual) value += ToFloat(LoadGlobal(to));
  if (p.onto_gate) value = Silu(ToFloat(LoadGlobal(to))) * ToFloat(FromFloat<Bf16>(value));
  StoreGlobal(to, FromFloat<Bf16>(value));
}

// Lane (g, t) has outputs g and g + 8 of the warp's sixteen, of rows 2t and 2t + 1 of each group of eight.
TM_DEVICE void StoreRows(const TileLinearParams& p, int first_out, int rows, const float (&sum)[kEights][4]) {
  const int32_t* const places = TileRows()->places;
  const int g = LaneId() / 4, t = LaneId() % 4;
  TM_UNROLL
  for (int n = 0; n < kEights; ++n) {
    TM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int r = n * 8 + 2 * t + i;
      if (r >= rows) continue;
      if (p.epilogue == Epilogue::kSwiGlu) {
        const float gate = ToFloat(FromFloat<Bf16>(sum[n][i])), up = ToFloat(FromFloat<Bf16>(sum[n][i + 2]));
        StoreGlobal(static_cast<Bf16*>(p.out) + places[r] * p.out_stride + first_out / 2 + g,
                    FromFloat<Bf16>(Silu(gate) * up));
        continue;
      }
      StoreOutput(p, places[r], first_out + g, sum[n][i]);
      StoreOutput(p, places[r], first_out + g + 8, sum[n][i + 2]);
    }
  }
}

// The rows of this block.
TM_DEVICE MoeTile FindTile(const TileLinearParams& p) {
  if (p.order != nullptr) return LoadUniform(p.tiles + BlockY());
  const int begin = BlockY() * kTileLinearRows, left = p.rows - begin;
  return {0, begin, left < kTileLinearRows ? left : kTileLinearRows};
}

// A block's way along K: buffers of x, and the warp's weights one step ahead.
template <typename Type>
struct TileLoop {
  const TileLinearParams& p;
  const std::byte* units;  // or rows of fp8; null: this warp has no outputs
  int rows;
  int tiles;
  int steps;
  StepOfWeight<Type> weight;
  CodeScales scales;
  float sum[kEights][4];

  TM_DEVICE void CopyStep(int step) {
    if (step < steps) LoadRows(p, rows, step, SharedBytes() + step % kStages * kStageBytes);
    CopyCommit();
  }

  TM_DEVICE void LoadStep(int step, StepOfWeight<Type>* to) const {
    if constexpr (Type::kInRows) {
      to->LoadTiles(units, p.in_features, step, tiles);
    } else {
      to->Load(units, p.weight_format, step, tiles);
    }
  }

  template <int kStep>
  TM_DEVICE void Step(int step) {
    CopyWait<kStages - 2>();
    SyncThreads();  // this step's rows are there, and nobody reads those of the one before
    CopyStep(step + kStages - 1);
    if (units == nullptr) return;
    StepOfWeight<Type> next = weight;
    if (step + 1 < steps) LoadStep(step + 1, &next);
    MultiplyStep<Type, kStep>(weight, p.weight_format, SharedBytes() + step % kStages * kStageBytes, step,
                              tiles, rows, &scales, sum);
    weight = next;
  }
};

}  // namespace

template <typename Type>
TM_KERNEL TM_BOUNDS(kMostWarps * 32, 2) void TileLinearKernel(TileLinearParams p) {
  AwaitPriorKernels();
  const MoeTile tile = FindTile(p);
  if (tile.rows == 0 || p.weights[tile.expert] == nullptr) return;
  FindRows(p, tile.begin, tile.rows);
  const int rows16 = BlockX() * (BlockSizeX() / 32) + ThreadX() / 32, first_out = rows16 * kUnitRows;
  const int64_t bytes = BytesOfUnitRows<Type>(p.weight_format, p.in_features);
  const auto* units = static_cast<const std::byte*>(p.weights[tile.expert]) + rows16 * bytes;
  TileLoop<Type> loop = {p,
                         first_out < p.out_features ? units : nullptr,
                         tile.rows,
                         p.in_features / kTileNumbers,
                         (p.in_features + kStepK - 1) / kStepK,
                         {},
                         {},
                         {}};
  TM_UNROLL
  for (int step = 0; step < kStages - 1; ++step) loop.CopyStep(step);
  if (loop.units != nullptr) {
    if constexpr (Type::kInRows) {
      loop.scales = Type::ForCodes(Type::LoadRowScales(p.row_scales + first_out, LaneId()), p.weight_format);
    }
    loop.LoadStep(0, &loop.weight);
  }
  for (int step = 0; step < loop.steps; step += Type::kLayout.runs()) {
    loop.template Step<0>(step);
    if constexpr (Type::kLayout.runs() == 4) {
      loop.template Step<1>(step + 1);
      loop.template Step<2>(step + 2);
      loop.template Step<3>(step + 3);
    }
  }
  if (loop.units != nullptr) StoreRows(p, first_out, tile.rows, loop.sum);
}

namespace {

int32_t RowTiles(const TileLinearParams& p) {
  return p.order != nullptr ? p.max_tiles : (p.rows + kTileLinearRows - 1) / kTileLinearRows;
}
int32_t OutTiles(const TileLinearParams& p, int32_t warps) {
  return (p.out_features + kUnitRows * warps - 1) / (kUnitRows * warps);
}

}  // namespace

int32_t TileLinearWarps(const TileLinearParams& p) {
  int32_t warps = kMostWarps;
  while (warps > kLeastWarps && OutTiles(p, warps) * RowTiles(p) < kBlocksWanted) warps /= 2;
  return warps;
}

int LaunchTileLinear(const TileLinearParams& p, void* stream) {
  const int32_t warps = TileLinearWarps(p);
  const Dim3 grid{static_cast<unsigned>(OutTiles(p, warps)), static_cast<unsigned>(RowTiles(p)), 1};
  const Dim3 block{static_cast<unsigned>(warps * 32)};
  const auto launch = [&]<typename Type>(Type) {
    if (const int error = AllowSharedBytes<TileLinearKernel<Type>, kSharedBytes>()) return error;
    return TM_LAUNCH(TileLinearKernel<Type>, grid, block, kSharedBytes, static_cast<Stream>(stream), p);
  };
  return p.row_scales != nullptr ? launch(Fp8Rows()) : WithBlocks(p.weight_format.dtype, launch);
}

}  // namespace tramontane::cuda
