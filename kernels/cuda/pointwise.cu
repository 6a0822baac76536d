// The small kernels of a step: embedding, RMSNorm, rows in fp8, columns in another order, SwiGLU, rotary
// table, rotary embedding with append, page copies. Shapes: pointwise.h.
//
// Grid:   stated at each kernel, as are the bytes; 128 threads a block, of RMSNorm and rows in fp8 512.
// Limits: widths a multiple of 8; bf16 activations; all are bound by memory or, in decode, by their launch.
// Math:   sums in f32 in a fixed order; one rounding to bf16 per output; angles in f64.
// Ideas:  16-byte loads and stores wherever rows allow (llm.c); rotation and append in one pass over qkv;
//         negative slots for padding (FlashInfer, vLLM); gate and up interleaved, so that one product makes
//         both.
#include "kernels/cuda/pointwise.h"

#include "kernels/cuda/blocks.cuh"
#include "kernels/cuda/device_pages.cuh"
#include "kernels/cuda/kv_numbers.cuh"
#include "kernels/cuda/primitives.cuh"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/silu.cuh"

namespace tramontane::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kNormThreads = 512;
constexpr int kPiece = 8;  // 16-bit elements of a 16-byte piece

// Columns i .. i + 7 of a table to where an order puts them in a row.
TM_DEVICE void StoreColumns(Bf16* row, int i, const Vector16& piece, const int32_t* order) {
  if (order == nullptr) {
    StoreGlobal16(row + i, piece);
    return;
  }
  const Vector16 columns[2] = {LoadGlobal16(order + i), LoadGlobal16(order + i + 4)};
  TM_UNROLL
  for (int j = 0; j < kPiece; ++j) {
    StoreGlobal(row + columns[j / 4].word[j % 4],
                Bf16{static_cast<uint16_t>(piece.word[j / 2] >> 16 * (j % 2))});
  }
}

}  // namespace

// Grid: (tokens). Bytes: read tokens * (width * 2 + 4), written tokens * width * 2. Here and in blocks, where
// columns have an order, a token reads width * 4 more.
TM_KERNEL TM_BOUNDS(kThreads) void EmbedKernel(EmbedKernelParams p) {
  AwaitPriorKernels();
  const int64_t row = LoadUniform(p.token_ids + BlockX());
  const auto* from = static_cast<const Bf16*>(p.table) + row * p.width;
  auto* to = static_cast<Bf16*>(p.out) + BlockX() * p.out_stride;
  for (int i = ThreadX() * kPiece; i < p.width; i += kThreads * kPiece)
    StoreColumns(to, i, LoadGlobal16(from + i), p.column_order);
}

// The same from a table in blocks: four threads take a run of a row, eight numbers of each tile.
// Grid: (tokens). Bytes: what two rows have of a run stands together, and both are read, with the scales of
// their unit: a token reads 4 + (runs along its row) * (bytes of a run + of a unit's scales) / 8 and writes
// width * 2.
template <typename Type>
TM_KERNEL TM_BOUNDS(kThreads) void EmbedBlocksKernel(EmbedKernelParams p) {
  constexpr UnitLayout kLayout = Type::kLayout;
  constexpr int kRunNumbers = kLayout.run_tiles * kTileNumbers;
  AwaitPriorKernels();
  const int32_t row = LoadUniform(p.token_ids + BlockX());
  const int in_unit = row % kUnitRows, t = ThreadX() % 4, lane = in_unit % 8 * 4 + t;
  const Format format = p.table_format;
  const int log2 = Type::TilesLog2(format), unit_bytes = Type::Layout(format).bytes();
  const auto* table =
      static_cast<const std::byte*>(p.table) + row / kUnitRows * BytesOfUnitRows<Type>(format, p.width);
  auto* to = static_cast<Bf16*>(p.out) + BlockX() * p.out_stride;
  for (int i = ThreadX() / 4; i < p.width / kRunNumbers; i += kThreads / 4) {
    const int first = i * kLayout.run_tiles, in_unit_tile = first & ((1 << log2) - 1);
    const std::byte* unit = table + int64_t{first >> log2} * unit_bytes;
    const typename Type::Scales scales = Type::LoadScales(unit, format, lane);
    const typename Type::Run run = Type::LoadRun(unit, in_unit_tile / kLayout.run_tiles, lane);
    TM_UNROLL
    for (int tile = 0; tile < (Type::kInGroups ? 1 : kLayout.tiles); ++tile) {  // known to the compiler
      if (!Type::kInGroups && tile / kLayout.run_tiles != in_unit_tile / kLayout.run_tiles) continue;
      const Vector16 numbers =
          in_unit < 8 ? Type::Decode(scales, run, tile, 0, t) : Type::Decode(scales, run, tile, 1, t);
      StoreColumns(to, i * kRunNumbers + tile % kLayout.run_tiles * kTileNumbers + 8 * t, numbers,
                   p.column_order);
    }
  }
}

namespace {

// What RMSNorm multiplies a row by, before its weights, of each thread's share of its sum of squares. sums:
// [kNormThreads / 32]. The block waits.
TM_DEVICE float FactorOfNorm(float sum, int width, float epsilon, float* sums) {
  TM_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) sum += ShuffleXor(sum, mask);
  if (LaneId() == 0) sums[ThreadX() / 32] = sum;
  SyncThreads();
  sum = 0.0f;
  TM_UNROLL
  for (int w = 0; w < kNormThreads / 32; ++w) sum += sums[w];
  return ReciprocalSqrt(sum / static_cast<float>(width) + epsilon);
}

// Eight elements of a row that need not be neighbours.
TM_DEVICE Floats<kPiece> LoadColumns(const Bf16* x, const Vector16 (&columns)[2]) {
  Floats<kPiece> out;
  TM_UNROLL
  for (int j = 0; j < kPiece; ++j) out.value[j] = ToFloat(LoadGlobal(x + columns[j / 4].word[j % 4]));
  return out;
}

TM_DEVICE float SumOfSquares(const Vector16& piece) {
  const Floats<kPiece> v = Unpack<Bf16>(piece);
  float sum = 0.0f;
  TM_UNROLL
  for (int j = 0; j < kPiece; ++j) sum += v.value[j] * v.value[j];
  return sum;
}

TM_DEVICE Vector16 Normalised(const Vector16& piece, const Vector16 (&weight)[2], float scale) {
  Floats<kPiece> v = Unpack<Bf16>(piece);
  TM_UNROLL
  for (int j = 0; j < kPiece; ++j) v.value[j] *= scale * FloatOf(weight[j / 4].word[j % 4]);
  return Pack<Bf16>(v);
}

}  // namespace

// Grid: (rows) of 512 threads, one piece each of a row of 4,096, which stays in registers; its weight comes
// while kernels before this one still run. The rest of a longer row is read twice, the second time from the
// cache, as is a row whose columns have an order. Bytes: read rows * width * (2 + 4) + rows * max(0, width -
// 4,096) * 2, where columns have an order rows * width * (2 * 2 + 4 + 4), when gathered 4 a row more; written
// rows * width * 2.
//
// Few rows leave multiprocessors idle, and are still a block each. The fewest never come here: a small
// product normalises up to kFusedNormRows itself (kFusedNormRowsOverBlocks over a weight in blocks;
// linear_small.h), and who chooses experts does so, too (moe.cu). What is left of few rows are decodes of
// more than those, and products of a weight whose columns have an order of their own. Such a call takes as
// long as its launch and a chain of a load, a sum over the block and a store. Between the block's barrier and
// the store a warp issues 73 instructions (sm_90a) and loads nothing; each further 4,096 of a row are 45
// more. With several blocks a row only those 45 would go, and only if every block read the whole row for its
// sum: to wait for the others' sums takes two fences and an atomic (last_block.cuh) and loads what they
// wrote.
TM_KERNEL TM_BOUNDS(kNormThreads, 3) void RmsNormKernel(RmsNormKernelParams p) {
  const int first = ThreadX() * kPiece;
  const bool in_order = p.column_order == nullptr, live = first < p.width;
  Vector16 weight[2] = {};
  if (in_order && live) {
    weight[0] = LoadConstant16(p.weight + first);
    weight[1] = LoadConstant16(p.weight + first + 4);
  }
  AwaitPriorKernels();
  auto* sums = reinterpret_cast<float*>(SharedBytes());  // [kNormThreads / 32]
  const int64_t row = p.x_rows == nullptr ? BlockX() : LoadUniform(p.x_rows + BlockX());
  const auto* x = static_cast<const Bf16*>(p.x) + row * p.x_stride;
  auto* y = static_cast<Bf16*>(p.y) + int64_t{BlockX()} * p.width;
  Vector16 piece = {};
  if (live) piece = LoadGlobal16(x + first);
  float sum = SumOfSquares(piece);
  for (int i = first + kNormThreads * kPiece; i < p.width; i += kNormThreads * kPiece)
    sum += SumOfSquares(LoadGlobal16(x + i));
  const float scale = FactorOfNorm(sum, p.width, p.epsilon, sums);
  if (in_order) {
    if (live) StoreGlobal16(y + first, Normalised(piece, weight, scale));
    TM_ROLLED
    for (int i = first + kNormThreads * kPiece; i < p.width; i += kNormThreads * kPiece) {
      const Vector16 others[2] = {LoadConstant16(p.weight + i), LoadConstant16(p.weight + i + 4)};
      StoreGlobal16(y + i, Normalised(LoadGlobal16(x + i), others, scale));
    }
    return;
  }
  TM_ROLLED
  for (int i = first; i < p.width; i += kNormThreads * kPiece) {
    const Vector16 columns[2] = {LoadGlobal16(p.column_order + i), LoadGlobal16(p.column_order + i + 4)};
    Floats<kPiece> v = LoadColumns(x, columns);
    TM_UNROLL
    for (int j = 0; j < kPiece; ++j) v.value[j] *= scale * LoadGlobal(p.weight + columns[j / 4].word[j % 4]);
    StoreGlobal16(y + i, Pack<Bf16>(v));
  }
}

// Grid: (rows) of 512 threads. A row is read twice, with a norm three times, all but once from the cache; its
// numbers are decoded and rounded by arithmetic, as sm_80 could. Bytes: read rows * width * 2 * 2, with a
// norm rows * width * (2 * 3 + 4 * 2) (+ 4 a row when gathered), written rows * (width + 4).
template <bool kNorm>
TM_KERNEL TM_BOUNDS(kNormThreads) void QuantiseRowsKernel(QuantiseRowsParams p) {
  AwaitPriorKernels();
  auto* sums = reinterpret_cast<float*>(SharedBytes());  // [kNormThreads / 32]
  float* const most = sums + kNormThreads / 32;          // the same
  const int64_t row = p.x_rows == nullptr ? BlockX() : LoadUniform(p.x_rows + BlockX());
  const auto* x = static_cast<const Bf16*>(p.x) + row * p.x_stride;
  float factor = 0.0f;
  if (kNorm) {
    for (int i = ThreadX() * kPiece; i < p.width; i += kNormThreads * kPiece)
      factor += SumOfSquares(LoadGlobal16(x + i));
    factor = FactorOfNorm(factor, p.width, p.epsilon, sums);
  }
  const auto numbers_at = [&](int i) {
    Floats<kPiece> v = Unpack<Bf16>(LoadGlobal16(x + i));
    if (!kNorm) return v;
    const Floats<kPiece> weight = LoadFloats<kPiece>(p.norm_weight + i);
    TM_UNROLL
    for (int j = 0; j < kPiece; ++j) v.value[j] *= factor * weight.value[j];
    return Unpack<Bf16>(Pack<Bf16>(v));
  };

  uint32_t largest = 0;  // of magnitudes, whose bits are in their order, NaN being above all
  for (int i = ThreadX() * kPiece; i < p.width; i += kNormThreads * kPiece) {
    const Floats<kPiece> v = numbers_at(i);
    TM_UNROLL
    for (int j = 0; j < kPiece; ++j) {
      const uint32_t magnitude = BitsOf(v.value[j]) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  const auto take = [&largest](float other) {
    if (BitsOf(other) > largest) largest = BitsOf(other);
  };
  TM_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) take(ShuffleXor(FloatOf(largest), mask));
  if (LaneId() == 0) most[ThreadX() / 32] = FloatOf(largest);
  SyncThreads();
  TM_UNROLL
  for (int w = 0; w < kNormThreads / 32; ++w) take(most[w]);
  if (FloatOf(largest) < kLeastQuantised) largest = 0;
  if (ThreadX() == 0) StoreGlobal(p.scales + BlockX(), FloatOf(largest) / 448.0f);

  const float inverse = largest == 0 ? 0.0f : 448.0f / FloatOf(largest);
  std::byte* y = static_cast<std::byte*>(p.y) + int64_t{BlockX()} * p.width;
  for (int i = ThreadX() * kPiece; i < p.width; i += kNormThreads * kPiece) {
    const Floats<kPiece> v = numbers_at(i);
    Vector8 codes = {};
    TM_UNROLL
    for (int j = 0; j < kPiece; ++j) codes.word[j / 4] |= Fp8OfFloat(v.value[j] * inverse) << (j % 4 * 8);
    StoreGlobal(reinterpret_cast<Vector8*>(y + i), codes);
  }
}

// Grid: (rows). Bytes: read rows * width * (2 + 4) (+ 4 a row when gathered), written rows * width * 2.
TM_KERNEL TM_BOUNDS(kThreads) void GatherColumnsKernel(GatherColumnsParams p) {
  AwaitPriorKernels();
  const int64_t row = p.x_rows == nullptr ? BlockX() : LoadUniform(p.x_rows + BlockX());
  const auto* x = static_cast<const Bf16*>(p.x) + row * p.x_stride;
  auto* y = static_cast<Bf16*>(p.y) + int64_t{BlockX()} * p.width;
  for (int i = ThreadX() * kPiece; i < p.width; i += kThreads * kPiece) {
    const Vector16 columns[2] = {LoadGlobal16(p.column_order + i), LoadGlobal16(p.column_order + i + 4)};
    StoreGlobal16(y + i, Pack<Bf16>(LoadColumns(x, columns)));
  }
}

// Grid: (rows, ceil(width / 1024)), a piece a thread. Bytes: read rows * width * 4, written rows * width * 2.
TM_KERNEL TM_BOUNDS(kThreads) void SwiGluKernel(SwiGluKernelParams p) {
  AwaitPriorKernels();
  const auto* from = static_cast<const Bf16*>(p.gate_up) + int64_t{BlockX()} * 2 * p.width;
  auto* to = static_cast<Bf16*>(p.h) + BlockX() * p.h_stride;
  const int i = (BlockY() * kThreads + ThreadX()) * kPiece;
  if (i >= p.width) return;
  Floats<kPiece> gate = Unpack<Bf16>(LoadGlobal16(from + (p.apart ? i : 2 * i)));
  const Floats<kPiece> up = Unpack<Bf16>(LoadGlobal16(from + (p.apart ? p.width + i : 2 * i + kPiece)));
  TM_UNROLL
  for (int j = 0; j < kPiece; ++j) gate.value[j] = Silu(gate.value[j]) * up.value[j];
  StoreGlobal16(to + i, Pack<Bf16>(gate));
}

// Grid: (tokens). Angles in f64: positions reach hundreds of thousands of radians.
// Bytes: read tokens * (4 + half_dim * 8), written tokens * half_dim * 8; with query scales, 4 a token more.
TM_KERNEL TM_BOUNDS(kThreads) void RopeTableKernel(RopeTableParams p) {
  AwaitPriorKernels();
  const int32_t index = LoadUniform(p.positions + BlockX());
  const double position = index;
  if (p.query_scale != nullptr && ThreadX() == 0) {
    const double scale = 1.0 + p.query_scale_beta * Log(1.0 + index / p.query_scale_positions);
    StoreGlobal(p.query_scale + BlockX(), static_cast<float>(scale));
  }
  for (int i = ThreadX(); i < p.half_dim; i += kThreads) {
    double sine, cosine;
    SineCosine(position * LoadGlobal(p.inverse_frequency + i), &sine, &cosine);
    float* out = p.cos_sin + (int64_t{BlockX()} * p.half_dim + i) * 2;
    StoreGlobal(out, static_cast<float>(p.magnitude * cosine));
    StoreGlobal(out + 1, static_cast<float>(p.magnitude * sine));
  }
}

// Grid: (tokens, ceil(units / 128)): a thread takes a unit of 2 * kCount numbers (rope.cuh) of a query, key
// or value head. Pages may hold T where activations are bf16. Bytes, d = head_dim: a token reads
// (query_heads + kv_heads) * 6d (elements, and cos and sin for each pair), kv_heads * 2d and 8 a block, and
// writes (query_heads + 2 kv_heads) * 2d; a padded one (slot < 0) its queries only. Latent pages take no
// values. With query scales 4 more a block.
template <typename T, int kCount>
TM_KERNEL TM_BOUNDS(kThreads) void RopeAppendKernel(RopeAppendParams p, PageDivisor divisor) {
  AwaitPriorKernels();
  const int head_dim = p.kv.format.head_dim, half = head_dim / 2, kv_heads = p.kv.format.kv_heads;
  const int units = half / kCount, index = BlockY() * kThreads + ThreadX();
  const int64_t slot = LoadUniform(p.slots + BlockX());
  const float query_scale = p.query_scale == nullptr ? 1.0f : LoadUniform(p.query_scale + BlockX());
  const int head = index / units, pair = index % units * kCount;
  const bool is_query = head < p.query_heads, is_value = head >= p.query_heads + kv_heads;
  if (head >= p.query_heads + p.kv.format.Halves() * kv_heads || (slot < 0 && !is_query)) return;

  const RopePlaces at = PlacesOfUnit<kCount>(p.style, pair / kCount, half);
  Bf16* const from = static_cast<Bf16*>(p.qkv.data) + BlockX() * p.qkv.row_stride + head * head_dim;
  RopeUnit<kCount> unit = LoadUnit<kCount>(from, at);
  if (!is_value && p.cos_sin != nullptr) {
    TurnUnit(p.style, p.cos_sin + (int64_t{BlockX()} * half + pair) * 2, &unit);
  }
  if (is_query) {
    ScaleUnit(query_scale, &unit);
    StoreUnit(from, at, unit);
    return;
  }
  const PagePlace place = PlaceOfSlot(divisor, slot);
  const int kv_head = head - p.query_heads - (is_value ? kv_heads : 0);
  std::byte* const to =
      is_value ? p.kv.Value(place.page, kv_head, place.offset) : p.kv.Key(place.page, kv_head, place.offset);
  StoreUnit(reinterpret_cast<T*>(to), at, unit);
}

// The queries once more, turned by sink_cos_sin. Grid: (tokens, ceil(units / 128)), as above.
// Bytes, d = head_dim: a token reads query_heads * 6d and writes query_heads * 2d; with query scales it reads
// 4 more a block.
template <int kCount>
TM_KERNEL TM_BOUNDS(kThreads) void RopeSinkQueryKernel(RopeAppendParams p) {
  AwaitPriorKernels();
  const int head_dim = p.kv.format.head_dim, half = head_dim / 2, units = half / kCount;
  const int index = BlockY() * kThreads + ThreadX(), head = index / units, pair = index % units * kCount;
  const float query_scale = p.query_scale == nullptr ? 1.0f : LoadUniform(p.query_scale + BlockX());
  if (head >= p.query_heads) return;
  const RopePlaces at = PlacesOfUnit<kCount>(p.style, pair / kCount, half);
  const auto* const from =
      static_cast<const Bf16*>(p.qkv.data) + BlockX() * p.qkv.row_stride + head * head_dim;
  RopeUnit<kCount> unit = LoadUnit<kCount>(from, at);
  TurnUnit(p.style, p.sink_cos_sin + (int64_t{BlockX()} * half + pair) * 2, &unit);
  ScaleUnit(query_scale, &unit);
  StoreUnit(static_cast<Bf16*>(p.sink_query.data) + BlockX() * p.sink_query.row_stride + head * head_dim, at,
            unit);
}

// Grid: (pairs, 16). Bytes: read and written count * page_bytes each (+ 8 read by a block).
TM_KERNEL TM_BOUNDS(kThreads) void CopyPagesKernel(CopyPagesParams p) {
  AwaitPriorKernels();
  const int64_t from = LoadUniform(p.pairs + 2 * BlockX()), to = LoadUniform(p.pairs + 2 * BlockX() + 1);
  const int64_t thread = int64_t{BlockY()} * kThreads + ThreadX(), threads = int64_t{GridY()} * kThreads;
  std::byte* const target = p.pool + to * p.page_bytes;
  const std::byte* const source = p.pool + from * p.page_bytes;
  if (p.page_bytes % 16 == 0) {
    for (int64_t i = thread * 16; i < p.page_bytes; i += threads * 16) {
      StoreGlobal16(target + i, LoadGlobal16(source + i));
    }
    return;
  }
  // Quantised pages of few tokens: rows of whole halves.
  for (int64_t i = thread * 2; i < p.page_bytes; i += threads * 2) {
    StoreGlobal(reinterpret_cast<uint16_t*>(target + i),
                LoadGlobal(reinterpret_cast<const uint16_t*>(source + i)));
  }
}

namespace {

Dim3 GridOf(int32_t x, int32_t y = 1) { return {static_cast<unsigned>(x), static_cast<unsigned>(y), 1}; }
// For a thread each.
int32_t BlocksOf(int32_t pieces) { return (pieces + kThreads - 1) / kThreads; }

int64_t AddressOf(const void* at) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(at)); }

// Addresses and strides of rows, of angles and of pages in one number: a power of two that divides it divides
// all of them.
int64_t PlacesOfRows(const RopeAppendParams& p) {
  return AddressOf(p.qkv.data) | p.qkv.row_stride * 2 | AddressOf(p.sink_query.data) |
         p.sink_query.row_stride * 2 | AddressOf(p.cos_sin) | AddressOf(p.sink_cos_sin);
}
int64_t PlacesOfPages(const KvLayerView& kv) {
  return AddressOf(kv.pool) | kv.page_bytes | kv.layer_offset | kv.value_offset | kv.head_bytes |
         kv.token_bytes;
}

// use(): with the most numbers of a piece that heads are made of in twos and that `places` allow.
template <typename Use>
int WithRopePiece(int64_t places, int32_t head_dim, const Use& use) {
  if ((places | head_dim) % 16 == 0) return use.template operator()<8>();
  if ((places | head_dim) % 8 == 0) return use.template operator()<4>();
  return use.template operator()<1>();
}

// A thread for each unit of so many heads of each token.
template <int kCount>
Dim3 GridOfUnits(const RopeAppendParams& params, int32_t heads) {
  return GridOf(static_cast<int32_t>(params.qkv.rows),
                BlocksOf(heads * (params.kv.format.head_dim / (2 * kCount))));
}

template <typename T>
int LaunchRopeAppendTo(const RopeAppendParams& params, void* stream) {
  const KvFormat& format = params.kv.format;
  const int64_t places = PlacesOfRows(params) | PlacesOfPages(params.kv);
  return WithRopePiece(places, format.head_dim, [&]<int kCount>() {
    return TM_LAUNCH((RopeAppendKernel<T, kCount>),
                     GridOfUnits<kCount>(params, params.query_heads + format.Halves() * format.kv_heads),
                     Dim3{kThreads}, 0, static_cast<Stream>(stream), params, PageDivisor(format.page_size));
  });
}

}  // namespace

int LaunchEmbed(const EmbedKernelParams& params, void* stream) {
  if (params.table_format != DType::kBf16) {
    return WithBlocks(params.table_format.dtype, [&]<typename Type>(Type) {
      return TM_LAUNCH(EmbedBlocksKernel<Type>, GridOf(params.tokens), Dim3{kThreads}, 0,
                       static_cast<Stream>(stream), params);
    });
  }
  return TM_LAUNCH(EmbedKernel, GridOf(params.tokens), Dim3{kThreads}, 0, static_cast<Stream>(stream),
                   params);
}
int LaunchRmsNorm(const RmsNormKernelParams& params, void* stream) {
  return TM_LAUNCH(RmsNormKernel, GridOf(params.rows), Dim3{kNormThreads}, kNormThreads / 32 * sizeof(float),
                   static_cast<Stream>(stream), params);
}
int LaunchQuantiseRows(const QuantiseRowsParams& params, void* stream) {
  constexpr int kSharedBytes = 2 * kNormThreads / 32 * static_cast<int>(sizeof(float));
  auto* s = static_cast<Stream>(stream);
  if (params.norm_weight != nullptr) {
    return TM_LAUNCH(QuantiseRowsKernel<true>, GridOf(params.rows), Dim3{kNormThreads}, kSharedBytes, s,
                     params);
  }
  return TM_LAUNCH(QuantiseRowsKernel<false>, GridOf(params.rows), Dim3{kNormThreads}, kSharedBytes, s,
                   params);
}
int LaunchGatherColumns(const GatherColumnsParams& params, void* stream) {
  return TM_LAUNCH(GatherColumnsKernel, GridOf(params.rows), Dim3{kThreads}, 0, static_cast<Stream>(stream),
                   params);
}
int LaunchSwiGlu(const SwiGluKernelParams& params, void* stream) {
  return TM_LAUNCH(SwiGluKernel, GridOf(params.rows, BlocksOf(params.width / kPiece)), Dim3{kThreads}, 0,
                   static_cast<Stream>(stream), params);
}
int LaunchRopeTable(const RopeTableParams& params, void* stream) {
  return TM_LAUNCH(RopeTableKernel, GridOf(params.tokens), Dim3{kThreads}, 0, static_cast<Stream>(stream),
                   params);
}
int LaunchRopeAppend(const RopeAppendParams& params, void* stream) {
  return params.kv.format.element.dtype == DType::kF16 ? LaunchRopeAppendTo<F16>(params, stream)
                                                       : LaunchRopeAppendTo<Bf16>(params, stream);
}
int LaunchRopeSinkQuery(const RopeAppendParams& params, void* stream) {
  return WithRopePiece(PlacesOfRows(params), params.kv.format.head_dim, [&]<int kCount>() {
    return TM_LAUNCH(RopeSinkQueryKernel<kCount>, GridOfUnits<kCount>(params, params.query_heads),
                     Dim3{kThreads}, 0, static_cast<Stream>(stream), params);
  });
}
int LaunchCopyPages(const CopyPagesParams& params, void* stream) {
  return TM_LAUNCH(CopyPagesKernel, GridOf(params.count, 16), Dim3{kThreads}, 0, static_cast<Stream>(stream),
                   params);
}

}  // namespace tramontane::cuda
