// A mixture of experts: moe_route and moe_group (who goes where), moe_gemm (twice: gate-up, down; gate and up
// that differ in form are a product each), before either moe_order where experts have their columns in an
// order of their own, and moe_combine. Shapes: moe.h. No atomics, nothing read by the host: sizes that depend
// on the choice stay on the device, and grids are made for the most there can be, so a step can be recorded.
//
// Grid:   stated at each kernel, as are the bytes; 256 threads a block. K inputs, N outputs of a product.
// Limits: hidden and intermediate sizes multiples of 8, hidden at most 16384; up to 256 experts; sm_80 and
//         later.
// Math:   scores, softmax, shares and the sum over a row's experts in f32, in one order; products of bf16 in
//         f32 sums; the norm, gate, up and their product rounded to bf16 as in the other linear layers, the
//         experts' outputs not rounded before they are summed; of weights in blocks as in linear_small.cu.
// Weights in blocks are decoded in registers; of more rows linear_tile.cu makes the products.
// Ideas:  few rows without any lists, a block for a pair (calm) or for an expert that finds its rows itself
//         (masked groups, DeepGEMM); more rows in tiles of one expert by a list made on the device
//         (contiguous groups, DeepGEMM and vLLM); outputs of pairs summed in a fixed order, not added by
//         atomics.
#include "kernels/cuda/moe.h"

#include "kernels/cuda/linear_small.cuh"
#include "kernels/cuda/linear_tile.h"
#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr float kLog2E = 1.4426950408889634f;

// Whether the row of this block is padding.
TM_DEVICE bool IsPadding(const int32_t* live_rows) {
  return live_rows != nullptr && BlockX() >= LoadUniform(live_rows);
}

// Greater for the greater float; zeros are equal.
TM_DEVICE uint32_t Ordered(float x) {
  const uint32_t bits = BitsOf(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// A row's part of shared memory: [hidden] f32, [experts] scores, [experts] whether taken, [warps] sums.
constexpr int64_t RouteSharedBytes(int32_t hidden, int32_t experts) {
  return int64_t{4} * (hidden + 2 * experts + kWarps);
}

constexpr int kMostRouteSharedBytes = static_cast<int>(RouteSharedBytes(kMaxMoeHidden, kMaxExperts));

// The row's sum of squares, the same in every thread: lanes by halves, then warps in order.
TM_DEVICE float SumOfSquares(const Bf16* x, int hidden, float* sums) {
  float sum = 0.0f;
  for (int i = ThreadX() * 8; i < hidden; i += kThreads * 8) {
    const Vector16 piece = LoadGlobal16(x + i);
    TM_UNROLL
    for (int j = 0; j < 4; ++j) {
      const float low = ToFloat(Bf16{static_cast<uint16_t>(piece.word[j])});
      const float high = ToFloat(Bf16{static_cast<uint16_t>(piece.word[j] >> 16)});
      sum += low * low + high * high;
    }
  }
  TM_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) sum += ShuffleXor(sum, mask);
  if (LaneId() == 0) sums[ThreadX() / 32] = sum;
  SyncThreads();
  sum = 0.0f;
  TM_UNROLL
  for (int w = 0; w < kWarps; ++w) sum += sums[w];
  return sum;
}

// The norm of the row in f32 to shared memory, and in bf16 to `out`.
TM_DEVICE void NormaliseRow(const Bf16* x, const float* weight, float scale, int hidden, float* row,
                            Bf16* out) {
  for (int i = ThreadX() * 8; i < hidden; i += kThreads * 8) {
    const Vector16 piece = LoadGlobal16(x + i);
    Vector16 rounded;
    TM_UNROLL
    for (int j = 0; j < 4; ++j) {
      const float low =
          ToFloat(Bf16{static_cast<uint16_t>(piece.word[j])}) * (scale * LoadGlobal(weight + i + 2 * j));
      const float high = ToFloat(Bf16{static_cast<uint16_t>(piece.word[j] >> 16)}) *
                         (scale * LoadGlobal(weight + i + 2 * j + 1));
      row[i + 2 * j] = low;
      row[i + 2 * j + 1] = high;
      rounded.word[j] = PackPair<Bf16>(low, high);
    }
    StoreGlobal16(out + i, rounded);
  }
}

TM_DEVICE float Score(const float* row, const float* weight, int hidden) {
  float sum = 0.0f;
  for (int i = LaneId() * 4; i < hidden; i += 128) {
    const Vector16 w = LoadGlobal16(weight + i);
    TM_UNROLL
    for (int j = 0; j < 4; ++j) sum += row[i + j] * FloatOf(w.word[j]);
  }
  TM_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) sum += ShuffleXor(sum, mask);
  return sum;
}

// Marks the `count` highest scores; of equal ones the lower expert. By one warp; a lane marks its own
// experts.
TM_DEVICE void TakeHighest(const float* scores, int experts, int count, int32_t* taken) {
  for (int e = LaneId(); e < experts; e += 32) taken[e] = 0;
  for (int i = 0; i < count; ++i) {
    uint64_t best = 0;
    for (int e = LaneId(); e < experts; e += 32) {
      const uint64_t key = uint64_t{Ordered(scores[e])} << 32 | (0xffffffffu - static_cast<uint32_t>(e));
      if (taken[e] == 0 && key > best) best = key;
    }
    TM_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) {
      const uint64_t other = ShuffleXor(best, mask);
      if (other > best) best = other;
    }
    const int expert = static_cast<int>(0xffffffffu - static_cast<uint32_t>(best));
    if (expert % 32 == LaneId()) taken[expert] = 1;
  }
}

// One thread: what was taken, ascending, and its softmax.
TM_DEVICE void StoreChoice(const float* scores, const int32_t* taken, int experts, int32_t* chosen,
                           float* shares) {
  float highest = FloatOf(0xff800000u), sum = 0.0f;
  for (int e = 0; e < experts; ++e) {
    if (taken[e] != 0) highest = Max(highest, scores[e]);
  }
  for (int e = 0; e < experts; ++e) {
    if (taken[e] != 0) sum += Exp2((scores[e] - highest) * kLog2E);
  }
  int found = 0;
  for (int e = 0; e < experts; ++e) {
    if (taken[e] == 0) continue;
    StoreGlobal(chosen + found, e);
    StoreGlobal(shares + found, Exp2((scores[e] - highest) * kLog2E) / sum);
    ++found;
  }
}

}  // namespace

// Grid: (rows). Bytes: a row reads hidden * (2 * 2 + 4) + experts * hidden * 4 and writes hidden * 2 +
// experts_per_token * 8; a padded one writes experts_per_token * 4. With live_rows each reads 4 more.
TM_KERNEL TM_BOUNDS(kThreads) void MoeRouteKernel(MoeRouteParams p) {
  AwaitPriorKernels();
  const int64_t first = int64_t{BlockX()} * p.experts_per_token;
  if (IsPadding(p.live_rows)) {
    for (int i = ThreadX(); i < p.experts_per_token; i += kThreads) StoreGlobal(p.chosen + first + i, -1);
    return;
  }
  auto* row = reinterpret_cast<float*>(SharedBytes());
  float* scores = row + p.hidden;
  auto* taken = reinterpret_cast<int32_t*>(scores + p.experts);
  auto* sums = reinterpret_cast<float*>(taken + p.experts);
  const auto* x = static_cast<const Bf16*>(p.x) + BlockX() * p.x_stride;
  const float mean = SumOfSquares(x, p.hidden, sums) / static_cast<float>(p.hidden);
  NormaliseRow(x, p.norm_weight, ReciprocalSqrt(mean + p.epsilon), p.hidden, row,
               static_cast<Bf16*>(p.normalised) + int64_t{BlockX()} * p.hidden);
  SyncThreads();
  for (int e = ThreadX() / 32; e < p.experts; e += kWarps) {
    const float score = Score(row, p.router + int64_t{e} * p.hidden, p.hidden);
    if (LaneId() == 0) scores[e] = score;
  }
  SyncThreads();
  if (ThreadX() < 32) TakeHighest(scores, p.experts, p.experts_per_token, taken);
  SyncThreads();
  if (ThreadX() == 0) StoreChoice(scores, taken, p.experts, p.chosen + first, p.shares + first);
}

namespace {

// Where this lane's part of the pairs begins, and the next one's.
TM_DEVICE int PairsBefore(int lane, int pairs) { return static_cast<int>(int64_t{lane} * pairs / 32); }

// Sum of `value` over the lanes up to this one.
TM_DEVICE int SumOfLanes(int value) {
  auto sum = static_cast<uint64_t>(value);
  TM_UNROLL
  for (int delta = 1; delta < 32; delta *= 2) {
    const uint64_t below = ShuffleUp(sum, delta);
    if (LaneId() >= delta) sum += below;
  }
  return static_cast<int>(sum);
}

TM_DEVICE int CountPairs(const MoeGroupParams& p, int expert) {
  int count = 0;
  for (int i = PairsBefore(LaneId(), p.pairs); i < PairsBefore(LaneId() + 1, p.pairs); ++i) {
    count += LoadGlobal(p.chosen + i) == expert ? 1 : 0;
  }
  return count;
}

TM_DEVICE int TilesOf(int rows) { return (rows + kMoeTileRows - 1) / kMoeTileRows; }

}  // namespace

// Grid: (1). A warp takes every eighth expert, a lane a run of the pairs: first all are counted, then written
// at their places.
// Bytes: read experts * pairs * 2 * 4 and, up to the last pair of each lane and expert, once more; written
// pairs * 4 + max_tiles * 12.
TM_KERNEL TM_BOUNDS(kThreads) void MoeGroupKernel(MoeGroupParams p) {
  AwaitPriorKernels();
  auto* counts = reinterpret_cast<int32_t*>(SharedBytes());  // [experts]
  int32_t* begins = counts + p.experts;                      // [experts]
  int32_t* first_tiles = begins + p.experts;                 // [experts + 1]
  for (int e = ThreadX() / 32; e < p.experts; e += kWarps) {
    const int up_to_lane = SumOfLanes(CountPairs(p, e));
    if (LaneId() == 31) counts[e] = up_to_lane;
  }
  SyncThreads();
  if (ThreadX() == 0) {
    int pairs = 0, tiles = 0;
    for (int e = 0; e < p.experts; ++e) {
      begins[e] = pairs;
      first_tiles[e] = tiles;
      pairs += counts[e];
      tiles += TilesOf(counts[e]);
    }
    first_tiles[p.experts] = tiles;
  }
  SyncThreads();
  for (int e = ThreadX() / 32; e < p.experts; e += kWarps) {
    const int own = CountPairs(p, e);
    int at = begins[e] + SumOfLanes(own) - own;
    const int end = at + own;
    for (int i = PairsBefore(LaneId(), p.pairs); at < end; ++i) {
      if (LoadGlobal(p.chosen + i) == e) StoreGlobal(p.order + at++, i);
    }
    for (int i = LaneId(); i < TilesOf(counts[e]); i += 32) {
      const int left = counts[e] - i * kMoeTileRows;
      StoreGlobal(p.tiles + first_tiles[e] + i,
                  MoeTile{e, begins[e] + i * kMoeTileRows, left < kMoeTileRows ? left : kMoeTileRows});
    }
  }
  for (int i = first_tiles[p.experts] + ThreadX(); i < p.max_tiles; i += kThreads) {
    StoreGlobal(p.tiles + i, MoeTile{0, 0, 0});
  }
}

namespace {

// What a block of MoeSmallKernel is for.
struct SmallGroup {
  int expert;  // -1: none, since an earlier pair has the same, or this one is padding
  int rows;    // of the expert
};

// Up to kMoePairRows rows the blocks (.., y) are for pair y and whoever shares its expert, else for expert y.
// All threads look through the choices; `pairs` gets the numbers of those that are the expert's.
template <int kRowTiles>
TM_DEVICE SmallGroup FindRows(const MoeGemmParams& p, int32_t* pairs, int (&own)[kRowTiles]) {
  const bool by_pair = p.rows <= kMoePairRows;
  SmallGroup group = {by_pair ? LoadUniform(p.chosen + BlockY()) : BlockY(), 0};
  if (group.expert < 0) return {-1, 0};
  TM_UNROLL
  for (int n = 0; n < kRowTiles; ++n) own[n] = -1;
  const int g = LaneId() / 4;
  for (int i = 0; i < p.pairs; ++i) {
    if (LoadUniform(p.chosen + i) != group.expert) continue;
    if (by_pair && group.rows == 0 && i < BlockY()) return {-1, 0};
    if (ThreadX() == 0) pairs[group.rows] = i;
    TM_UNROLL
    for (int n = 0; n < kRowTiles; ++n) {
      if (group.rows == n * 8 + g) own[n] = i;
    }
    ++group.rows;
  }
  return group;
}

// An output of one weight alone, f32 or bf16.
TM_DEVICE void StoreProduct(const MoeGemmParams& p, int64_t at, float value) {
  if (p.out_kind == MoeOut::kF32) {
    StoreGlobal(static_cast<float*>(p.out) + at, value);
    return;
  }
  Bf16* out = static_cast<Bf16*>(p.out) + at;
  Bf16 rounded = FromFloat<Bf16>(value);
  if (p.out_kind == MoeOut::kUp) rounded = FromFloat<Bf16>(Silu(ToFloat(LoadGlobal(out))) * ToFloat(rounded));
  StoreGlobal(out, rounded);
}

}  // namespace

// The masked form, for few rows: y = x W^T for 16 outputs and all rows of one expert; an expert has each row
// at most once. Type: Bf16, or that of W's blocks. kRowTiles: groups of eight rows.
// Grid: (ceil(N / 16), pairs up to kMoePairRows rows, else experts).
// Bytes: a block reads pairs * 4 (by pairs 4 more, and no further than an earlier pair); where it has R > 0
// rows of which no earlier pair is, 16 * K * 2 of W (in blocks as in linear_small.cu) and R * K * 2 of x, and
// writes R * 16 outputs (8 for kSwiGlu) of 4 bytes for kF32, else of 2, fewer in the last block; for kUp it
// reads what it writes. In all, W of each expert that a row chose is read once.
template <typename Type, int kRowTiles>
TM_KERNEL TM_BOUNDS(kThreads) void MoeSmallKernel(MoeGemmParams p) {
  AwaitPriorKernels();
  auto* partial = reinterpret_cast<float*>(SharedBytes());
  auto* pairs = reinterpret_cast<int32_t*>(SharedBytes() + kSmallPartialBytes<kRowTiles>);
  int own[kRowTiles];
  const SmallGroup group = FindRows<kRowTiles>(p, pairs, own);
  if (group.rows == 0 || p.weights[group.expert] == nullptr) return;

  const int first_out = BlockX() * kSmallTileOut;
  const std::byte* row[kRowTiles];
  TM_UNROLL
  for (int n = 0; n < kRowTiles; ++n) {
    const int64_t from = own[n] / p.pairs_of_a_row;
    row[n] = own[n] < 0
                 ? nullptr
                 : reinterpret_cast<const std::byte*>(static_cast<const Bf16*>(p.x) + from * p.in_features);
  }
  float sum[kRowTiles][4] = {};
  if constexpr (kIsBf16<Type>) {
    const SmallRows rows = {static_cast<const Bf16*>(p.weights[group.expert]), first_out, p.out_features,
                            p.in_features};
    MultiplySmallTile<kRowTiles, false>(rows, LoadSmallWeights(rows), row, sum);
  } else {
    const int64_t bytes = BytesOfUnitRows<Type>(p.weight_format, p.in_features);
    const auto* units = static_cast<const std::byte*>(p.weights[group.expert]) + BlockX() * bytes;
    MultiplySmallBlocks<Type, kRowTiles, false>(units, p.weight_format, row, p.in_features, sum);
  }
  StoreSmallPartials(sum, partial);

  if (p.out_kind == MoeOut::kSwiGlu) {
    for (int i = ThreadX(); i < group.rows * 8; i += kThreads) {
      const int r = i / 8, out = i % 8;
      const float gate = ToFloat(FromFloat<Bf16>(SmallTotal<kRowTiles>(partial, r, out)));
      const float up = ToFloat(FromFloat<Bf16>(SmallTotal<kRowTiles>(partial, r, out + 8)));
      StoreGlobal(static_cast<Bf16*>(p.out) + int64_t{pairs[r]} * (p.out_features / 2) + first_out / 2 + out,
                  FromFloat<Bf16>(Silu(gate) * up));
    }
    return;
  }
  for (int i = ThreadX(); i < group.rows * kSmallTileOut; i += kThreads) {
    const int r = i / kSmallTileOut, out = i % kSmallTileOut;
    if (first_out + out >= p.out_features) continue;
    StoreProduct(p, int64_t{pairs[r]} * p.out_features + first_out + out,
                 SmallTotal<kRowTiles>(partial, r, out));
  }
}

// Rows of x once more for each pair, columns as its expert's weight has them. A row is whole in shared memory
// before any of it is written, so that it may be written where it lies.
// Grid: (pairs). Bytes: a pair reads 4 and, where it has an expert, width * 2, of one that has an order
// width * 4 more, and writes width * 2.
TM_KERNEL TM_BOUNDS(kThreads) void MoeOrderKernel(MoeOrderParams p) {
  AwaitPriorKernels();
  const int expert = LoadUniform(p.chosen + BlockX());
  if (expert < 0) return;
  const int32_t* order = p.orders[expert];
  auto* row = reinterpret_cast<Bf16*>(SharedBytes());  // [width]
  const auto* x = static_cast<const Bf16*>(p.x) + int64_t{BlockX() / p.pairs_of_a_row} * p.width;
  auto* y = static_cast<Bf16*>(p.y) + int64_t{BlockX()} * p.width;
  for (int i = ThreadX() * 8; i < p.width; i += kThreads * 8) StoreShared16(row + i, LoadGlobal16(x + i));
  SyncThreads();
  for (int i = ThreadX() * 8; i < p.width; i += kThreads * 8) {
    Vector16 piece;
    if (order == nullptr) {
      piece = LoadShared16(row + i);
    } else {
      const Vector16 columns[2] = {LoadGlobal16(order + i), LoadGlobal16(order + i + 4)};
      TM_UNROLL
      for (int j = 0; j < 4; ++j) {
        const uint32_t low = row[columns[j / 2].word[2 * j % 4]].bits;
        const uint32_t high = row[columns[j / 2].word[2 * j % 4 + 1]].bits;
        piece.word[j] = low | high << 16;
      }
    }
    StoreGlobal16(y + i, piece);
  }
}

namespace {

// A tile of 128 outputs by 64 rows, 64 of K at a time, through three buffers.
constexpr int kTileOut = 128;
constexpr int kTileK = 64;
constexpr int kStages = 3;
constexpr int kTileChunks = kTileK / 8;  // 16-byte chunks of a row
constexpr int kWeightBytes = kTileOut * kTileK * 2;
constexpr int kStageBytes = kWeightBytes + kMoeTileRows * kTileK * 2;
constexpr int kTileSharedBytes = kStages * kStageBytes + kMoeTileRows * 4;

// Where a chunk of a row stands: rows of 128 bytes, chunks exchanged so that eight rows' are in eight banks.
TM_DEVICE int TileChunk(int row, int chunk) { return row * kTileK * 2 + (chunk ^ (row & 7)) * 16; }

// Weights and rows of x at k = [step * kTileK, ..) into a buffer; zeros where there are none.
TM_DEVICE void LoadTiles(const MoeGemmParams& p, const Bf16* weight, int first_out, const int32_t* pairs,
                         int rows, int step, std::byte* to) {
  const int chunk = ThreadX() % kTileChunks, k = step * kTileK + chunk * 8;
  const auto* x = static_cast<const Bf16*>(p.x);
  for (int out = ThreadX() / kTileChunks; out < kTileOut; out += kThreads / kTileChunks) {
    const bool live = first_out + out < p.out_features && k < p.in_features;
    const Bf16* from = live ? weight + int64_t{first_out + out} * p.in_features + k : weight;
    CopyAsync16(to + TileChunk(out, chunk), from, live ? 16 : 0);
  }
  for (int r = ThreadX() / kTileChunks; r < kMoeTileRows; r += kThreads / kTileChunks) {
    const bool live = r < rows && k < p.in_features;
    const Bf16* from = live ? x + int64_t{pairs[r] / p.pairs_of_a_row} * p.in_features + k : x;
    CopyAsync16(to + kWeightBytes + TileChunk(r, chunk), from, live ? 16 : 0);
  }
}

// One buffer's products: this warp's 16 outputs by all rows. sum: [groups of eight rows][fragment]
TM_DEVICE void MultiplyTiles(const std::byte* tiles, int rows, float (&sum)[kMoeTileRows / 8][4]) {
  const int warp = ThreadX() / 32, lane = LaneId();
  TM_UNROLL
  for (int kk = 0; kk < kTileK / 16; ++kk) {
    uint32_t a[4];
    LoadMatrix4(a, tiles + TileChunk(warp * 16 + lane % 16, 2 * kk + lane / 16));
    TM_UNROLL
    for (int n = 0; n < kMoeTileRows / 16; ++n) {
      if (n * 16 >= rows) continue;
      uint32_t b[4];
      LoadMatrix4(b,
                  tiles + kWeightBytes + TileChunk(n * 16 + lane / 16 * 8 + lane % 8, 2 * kk + lane / 8 % 2));
      Mma16816<Bf16>(sum[2 * n], a, b);
      Mma16816<Bf16>(sum[2 * n + 1], a, b + 2);
    }
  }
}

// Lane (g, t) has outputs g and g + 8 of the warp's sixteen, of rows 2t and 2t + 1 of each group of eight.
TM_DEVICE void StoreTile(const MoeGemmParams& p, int first_out, const int32_t* pairs, int rows,
                         const float (&sum)[kMoeTileRows / 8][4]) {
  const int g = LaneId() / 4, t = LaneId() % 4;
  TM_UNROLL
  for (int n = 0; n < kMoeTileRows / 8; ++n) {
    TM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int r = n * 8 + 2 * t + i;
      if (r >= rows) continue;
      const int64_t pair = pairs[r];
      if (p.out_kind == MoeOut::kSwiGlu) {
        if (first_out >= p.out_features) continue;
        const float gate = ToFloat(FromFloat<Bf16>(sum[n][i])), up = ToFloat(FromFloat<Bf16>(sum[n][i + 2]));
        StoreGlobal(static_cast<Bf16*>(p.out) + pair * (p.out_features / 2) + first_out / 2 + g,
                    FromFloat<Bf16>(Silu(gate) * up));
        continue;
      }
      const int64_t at = pair * p.out_features + first_out + g;
      if (first_out + g < p.out_features) StoreProduct(p, at, sum[n][i]);
      if (first_out + g + 8 < p.out_features) StoreProduct(p, at + 8, sum[n][i + 2]);
    }
  }
}

}  // namespace

// The contiguous form: up to 64 rows of one expert from the list.
// Grid: (ceil(N / 128), max_tiles).
// Bytes: a block reads 12; where its tile has R > 0 rows, R * 4, 128 * K * 2 of W (fewer in the last block)
// and R * K * 2 of x, and writes R * 128 outputs (64 for kSwiGlu) of 4 bytes for kF32, else of 2; for kUp it
// reads what it writes.
TM_KERNEL TM_BOUNDS(kThreads) void MoeTileKernel(MoeGemmParams p) {
  AwaitPriorKernels();
  const MoeTile tile = LoadUniform(p.tiles + BlockY());
  if (tile.rows == 0 || p.weights[tile.expert] == nullptr) return;
  auto* pairs = reinterpret_cast<int32_t*>(SharedBytes() + kStages * kStageBytes);
  if (ThreadX() < tile.rows) pairs[ThreadX()] = LoadGlobal(p.order + tile.begin + ThreadX());
  SyncThreads();
  const auto* weight = static_cast<const Bf16*>(p.weights[tile.expert]);
  const int first_out = BlockX() * kTileOut;
  const int steps = (p.in_features + kTileK - 1) / kTileK;
  TM_UNROLL
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < steps)
      LoadTiles(p, weight, first_out, pairs, tile.rows, step, SharedBytes() + step * kStageBytes);
    CopyCommit();
  }
  float sum[kMoeTileRows / 8][4] = {};
  for (int step = 0; step < steps; ++step) {
    CopyWait<kStages - 2>();
    SyncThreads();  // this step's tiles are there, and nobody reads those of the one before
    const int next = step + kStages - 1;
    if (next < steps) {
      LoadTiles(p, weight, first_out, pairs, tile.rows, next, SharedBytes() + next % kStages * kStageBytes);
    }
    CopyCommit();
    MultiplyTiles(SharedBytes() + step % kStages * kStageBytes, tile.rows, sum);
  }
  StoreTile(p, first_out + ThreadX() / 32 * 16, pairs, tile.rows, sum);
}

// Grid: (rows). Bytes: a row reads experts_per_token * (hidden * 4 + 4) and writes hidden * 2; with `add` it
// reads hidden * 2 more. With live_rows each reads 4 more, and a padded one nothing else.
TM_KERNEL TM_BOUNDS(kThreads) void MoeCombineKernel(MoeCombineParams p) {
  AwaitPriorKernels();
  if (IsPadding(p.live_rows)) return;
  const int64_t first = int64_t{BlockX()} * p.experts_per_token;
  auto* out = static_cast<Bf16*>(p.out) + BlockX() * p.out_stride;
  for (int i = ThreadX() * 8; i < p.hidden; i += kThreads * 8) {
    float sum[8] = {};
    for (int e = 0; e < p.experts_per_token; ++e) {
      const float share = LoadUniform(p.shares + first + e);
      const float* y = p.y + (first + e) * p.hidden + i;
      TM_UNROLL
      for (int half = 0; half < 2; ++half) {
        const Vector16 piece = LoadGlobal16(y + 4 * half);
        TM_UNROLL
        for (int j = 0; j < 4; ++j) sum[4 * half + j] += share * FloatOf(piece.word[j]);
      }
    }
    Vector16 result;
    if (p.add) result = LoadGlobal16(out + i);
    TM_UNROLL
    for (int j = 0; j < 4; ++j) {
      float low = sum[2 * j], high = sum[2 * j + 1];
      if (p.add) {
        low += ToFloat(Bf16{static_cast<uint16_t>(result.word[j])});
        high += ToFloat(Bf16{static_cast<uint16_t>(result.word[j] >> 16)});
      }
      result.word[j] = PackPair<Bf16>(low, high);
    }
    StoreGlobal16(out + i, result);
  }
}

namespace {

Dim3 GridOf(int32_t x, int32_t y = 1) { return {static_cast<unsigned>(x), static_cast<unsigned>(y), 1}; }
constexpr int32_t CeilDiv(int32_t value, int32_t divisor) { return (value + divisor - 1) / divisor; }

template <typename Type, int kRowTiles>
int LaunchSmall(const MoeGemmParams& p, Stream stream) {
  const int32_t groups = p.rows <= kMoePairRows ? p.pairs : p.experts;
  return TM_LAUNCH((MoeSmallKernel<Type, kRowTiles>), GridOf(CeilDiv(p.out_features, kSmallTileOut), groups),
                   Dim3{kThreads}, kSmallPartialBytes<kRowTiles> + kRowTiles * 8 * 4, stream, p);
}

int LaunchTilesOfBlocks(const MoeGemmParams& p, void* stream) {
  TileLinearParams tiles{};
  for (int32_t e = 0; e < p.experts; ++e) tiles.weights[e] = p.weights[e];
  tiles.x = p.x;
  tiles.out = p.out;
  tiles.order = p.order;
  tiles.tiles = p.tiles;
  tiles.x_stride = p.in_features;
  tiles.out_stride = p.out_kind == MoeOut::kSwiGlu ? p.out_features / 2 : p.out_features;
  tiles.max_tiles = p.max_tiles;
  tiles.places_of_a_row = p.pairs_of_a_row;
  tiles.in_features = p.in_features;
  tiles.out_features = p.out_features;
  tiles.epilogue = p.out_kind == MoeOut::kSwiGlu ? Epilogue::kSwiGlu : Epilogue::kNone;
  tiles.out_dtype = p.out_kind == MoeOut::kF32 ? DType::kF32 : DType::kBf16;
  tiles.onto_gate = p.out_kind == MoeOut::kUp;
  tiles.weight_format = p.weight_format;
  return LaunchTileLinear(tiles, stream);
}

}  // namespace

int LaunchMoeRoute(const MoeRouteParams& p, void* stream) {
  const auto shared = static_cast<int>(RouteSharedBytes(p.hidden, p.experts));
  if (const int error = AllowSharedBytes<MoeRouteKernel, kMostRouteSharedBytes>()) return error;
  return TM_LAUNCH(MoeRouteKernel, GridOf(p.rows), Dim3{kThreads}, shared, static_cast<Stream>(stream), p);
}

int LaunchMoeGroup(const MoeGroupParams& p, void* stream) {
  return TM_LAUNCH(MoeGroupKernel, GridOf(1), Dim3{kThreads}, (3 * p.experts + 1) * 4,
                   static_cast<Stream>(stream), p);
}

int LaunchMoeOrder(const MoeOrderParams& p, void* stream) {
  if (const int error = AllowSharedBytes<MoeOrderKernel, kMaxMoeOrderWidth * 2>()) return error;
  return TM_LAUNCH(MoeOrderKernel, GridOf(p.pairs), Dim3{kThreads}, p.width * 2, static_cast<Stream>(stream),
                   p);
}

int LaunchMoeGemm(const MoeGemmParams& p, void* stream) {
  auto* s = static_cast<Stream>(stream);
  if (p.order == nullptr && p.weight_format != DType::kBf16) {
    return WithBlocks(p.weight_format.dtype, [&]<typename Type>(Type) {
      return p.rows <= 8 ? LaunchSmall<Type, 1>(p, s) : LaunchSmall<Type, 2>(p, s);
    });
  }
  if (p.order == nullptr) return p.rows <= 8 ? LaunchSmall<Bf16, 1>(p, s) : LaunchSmall<Bf16, 2>(p, s);
  if (p.weight_format != DType::kBf16) return LaunchTilesOfBlocks(p, stream);
  if (const int error = AllowSharedBytes<MoeTileKernel, kTileSharedBytes>()) return error;
  return TM_LAUNCH(MoeTileKernel, GridOf(CeilDiv(p.out_features, kTileOut), p.max_tiles), Dim3{kThreads},
                   kTileSharedBytes, s, p);
}

int LaunchMoeCombine(const MoeCombineParams& p, void* stream) {
  return TM_LAUNCH(MoeCombineKernel, GridOf(p.rows), Dim3{kThreads}, 0, static_cast<Stream>(stream), p);
}

}  // namespace tramontane::cuda
