// The small kernels of a step: embedding, RMSNorm, columns in another order, SwiGLU, rotary table, rotary
// embedding with append, page copies. Shapes: pointwise.h.
//
// Grid:   stated at each kernel, as are the bytes; 128 threads a block.
// Limits: widths a multiple of 8; bf16 activations; all are bound by memory or, in decode, by their launch.
// Math:   sums in f32 in a fixed order; one rounding to bf16 per output; angles in f64.
// Ideas:  16-byte loads and stores wherever rows allow (llm.c); rotation and append in one pass over qkv;
//         negative slots for padding (FlashInfer, vLLM); gate and up interleaved, so that one product makes
//         both.
#include "kernels/cuda/pointwise.h"

#include "kernels/cuda/blocks.cuh"
#include "kernels/cuda/primitives.cuh"
#include "kernels/cuda/silu.cuh"

namespace tramontane::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kPiece = 8;  // 16-bit elements of a 16-byte piece

struct Floats8 {
  float value[kPiece];
};

template <typename T>
TM_DEVICE Floats8 Unpack(const Vector16& piece) {
  Floats8 out;
  TM_UNROLL
  for (int i = 0; i < 4; ++i) {
    out.value[2 * i] = ToFloat(T{static_cast<uint16_t>(piece.word[i])});
    out.value[2 * i + 1] = ToFloat(T{static_cast<uint16_t>(piece.word[i] >> 16)});
  }
  return out;
}

template <typename T>
TM_DEVICE Vector16 Pack(const Floats8& in) {
  Vector16 out;
  TM_UNROLL
  for (int i = 0; i < 4; ++i) out.word[i] = PackPair<T>(in.value[2 * i], in.value[2 * i + 1]);
  return out;
}

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
TM_KERNEL void EmbedKernel(EmbedKernelParams p) {
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
TM_KERNEL void EmbedBlocksKernel(EmbedKernelParams p) {
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

// Eight elements of a row that need not be neighbours.
TM_DEVICE Floats8 LoadColumns(const Bf16* x, const Vector16 (&columns)[2]) {
  Floats8 out;
  TM_UNROLL
  for (int j = 0; j < kPiece; ++j) out.value[j] = ToFloat(LoadGlobal(x + columns[j / 4].word[j % 4]));
  return out;
}

}  // namespace

// Grid: (rows). A row is read twice, the second time from the cache.
// Bytes: read rows * width * (2 * 2 + 4) (+ 4 a row when gathered, + 4 for each column that has its place in
// an order), written rows * width * 2.
TM_KERNEL void RmsNormKernel(RmsNormKernelParams p) {
  AwaitPriorKernels();
  auto* sums = reinterpret_cast<float*>(SharedBytes());  // [kThreads / 32]
  const int64_t row = p.x_rows == nullptr ? BlockX() : LoadUniform(p.x_rows + BlockX());
  const auto* x = static_cast<const Bf16*>(p.x) + row * p.x_stride;
  auto* y = static_cast<Bf16*>(p.y) + int64_t{BlockX()} * p.width;
  float sum = 0.0f;
  for (int i = ThreadX() * kPiece; i < p.width; i += kThreads * kPiece) {
    const Floats8 v = Unpack<Bf16>(LoadGlobal16(x + i));
    TM_UNROLL
    for (int j = 0; j < kPiece; ++j) sum += v.value[j] * v.value[j];
  }
  TM_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) sum += ShuffleXor(sum, mask);
  if (LaneId() == 0) sums[ThreadX() / 32] = sum;
  SyncThreads();
  sum = 0.0f;
  TM_UNROLL
  for (int w = 0; w < kThreads / 32; ++w) sum += sums[w];
  const float scale = ReciprocalSqrt(sum / static_cast<float>(p.width) + p.epsilon);
  for (int i = ThreadX() * kPiece; i < p.width; i += kThreads * kPiece) {
    Floats8 v;
    if (p.column_order == nullptr) {
      v = Unpack<Bf16>(LoadGlobal16(x + i));
      TM_UNROLL
      for (int j = 0; j < kPiece; ++j) v.value[j] *= scale * LoadGlobal(p.weight + i + j);
    } else {
      const Vector16 columns[2] = {LoadGlobal16(p.column_order + i), LoadGlobal16(p.column_order + i + 4)};
      v = LoadColumns(x, columns);
      TM_UNROLL
      for (int j = 0; j < kPiece; ++j)
        v.value[j] *= scale * LoadGlobal(p.weight + columns[j / 4].word[j % 4]);
    }
    StoreGlobal16(y + i, Pack<Bf16>(v));
  }
}

// Grid: (rows). Bytes: read rows * width * (2 + 4) (+ 4 a row when gathered), written rows * width * 2.
TM_KERNEL void GatherColumnsKernel(GatherColumnsParams p) {
  AwaitPriorKernels();
  const int64_t row = p.x_rows == nullptr ? BlockX() : LoadUniform(p.x_rows + BlockX());
  const auto* x = static_cast<const Bf16*>(p.x) + row * p.x_stride;
  auto* y = static_cast<Bf16*>(p.y) + int64_t{BlockX()} * p.width;
  for (int i = ThreadX() * kPiece; i < p.width; i += kThreads * kPiece) {
    const Vector16 columns[2] = {LoadGlobal16(p.column_order + i), LoadGlobal16(p.column_order + i + 4)};
    StoreGlobal16(y + i, Pack<Bf16>(LoadColumns(x, columns)));
  }
}

// Grid: (rows). Bytes: read rows * width * 4, written rows * width * 2.
TM_KERNEL void SwiGluKernel(SwiGluKernelParams p) {
  AwaitPriorKernels();
  const auto* from = static_cast<const Bf16*>(p.gate_up) + int64_t{BlockX()} * 2 * p.width;
  auto* to = static_cast<Bf16*>(p.h) + BlockX() * p.h_stride;
  for (int i = ThreadX() * kPiece; i < p.width; i += kThreads * kPiece) {
    Floats8 gate = Unpack<Bf16>(LoadGlobal16(from + (p.apart ? i : 2 * i)));
    const Floats8 up = Unpack<Bf16>(LoadGlobal16(from + (p.apart ? p.width + i : 2 * i + kPiece)));
    TM_UNROLL
    for (int j = 0; j < kPiece; ++j) gate.value[j] = Silu(gate.value[j]) * up.value[j];
    StoreGlobal16(to + i, Pack<Bf16>(gate));
  }
}

// Grid: (tokens). Angles in f64: positions reach hundreds of thousands of radians.
// Bytes: read tokens * (4 + half_dim * 8), written tokens * half_dim * 8; with query scales, 4 a token more.
TM_KERNEL void RopeTableKernel(RopeTableParams p) {
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

namespace {

// The two elements of pair i of a head, and where they lie.
TM_DEVICE int FirstOfPair(RotaryStyle style, int i) { return style == RotaryStyle::kHalfSplit ? i : 2 * i; }
TM_DEVICE int SecondOfPair(RotaryStyle style, int i, int half) {
  return style == RotaryStyle::kHalfSplit ? i + half : 2 * i + 1;
}

// Pages may hold T where activations are bf16.
template <typename T>
TM_DEVICE void AppendPair(std::byte* vector, int at, float value) {
  StoreGlobal(reinterpret_cast<T*>(vector) + at, FromFloat<T>(value));
}

}  // namespace

// Grid: (tokens). A thread takes pairs of query and key heads, then elements of value heads.
// Bytes, d = head_dim: a token reads 8 + (query_heads + kv_heads) * 6d (elements, and cos and sin for each
// pair) + kv_heads * 2d and writes (query_heads + 2 kv_heads) * 2d; a padded one (slot < 0) its queries only.
// With query scales a token reads 4 more.
template <typename T>
TM_KERNEL void RopeAppendKernel(RopeAppendParams p) {
  AwaitPriorKernels();
  const int head_dim = p.kv.format.head_dim, half = head_dim / 2;
  const int kv_heads = p.kv.format.kv_heads;
  auto* row = static_cast<Bf16*>(p.qkv.data) + BlockX() * p.qkv.row_stride;
  const float* cos_sin = p.cos_sin == nullptr ? nullptr : p.cos_sin + int64_t{BlockX()} * half * 2;
  const int64_t slot = LoadUniform(p.slots + BlockX());
  const float query_scale = p.query_scale == nullptr ? 1.0f : LoadUniform(p.query_scale + BlockX());
  const int64_t page = slot < 0 ? 0 : PageOfSlot(slot, p.kv.format.page_size);
  const int32_t offset = slot < 0 ? 0 : OffsetOfSlot(slot, p.kv.format.page_size);

  for (int piece = ThreadX(); piece < (p.query_heads + kv_heads) * half; piece += kThreads) {
    const int head = piece / half, i = piece % half;
    const bool is_key = head >= p.query_heads;
    if (is_key && slot < 0) break;
    Bf16* vector = row + head * head_dim;
    const int first = FirstOfPair(p.style, i), second = SecondOfPair(p.style, i, half);
    const float a = ToFloat(LoadGlobal(vector + first)), b = ToFloat(LoadGlobal(vector + second));
    const float cosine = cos_sin == nullptr ? 1.0f : LoadGlobal(cos_sin + 2 * i);
    const float sine = cos_sin == nullptr ? 0.0f : LoadGlobal(cos_sin + 2 * i + 1);
    const float x = a * cosine - b * sine, y = b * cosine + a * sine;
    if (is_key) {
      std::byte* key = p.kv.Key(page, head - p.query_heads, offset);
      AppendPair<T>(key, first, x);
      AppendPair<T>(key, second, y);
    } else {
      StoreGlobal(vector + first, FromFloat<Bf16>(x * query_scale));
      StoreGlobal(vector + second, FromFloat<Bf16>(y * query_scale));
    }
  }
  if (slot < 0 || p.kv.format.latent()) return;
  const Bf16* values = row + (p.query_heads + kv_heads) * head_dim;
  for (int piece = ThreadX(); piece < kv_heads * head_dim; piece += kThreads) {
    const int head = piece / head_dim, d = piece % head_dim;
    AppendPair<T>(p.kv.Value(page, head, offset), d, ToFloat(LoadGlobal(values + piece)));
  }
}

// The queries once more, turned by sink_cos_sin. Grid: (tokens).
// Bytes, d = head_dim: a token reads query_heads * 6d and writes query_heads * 2d; with query scales it reads
// 4 more.
TM_KERNEL void RopeSinkQueryKernel(RopeAppendParams p) {
  AwaitPriorKernels();
  const int head_dim = p.kv.format.head_dim, half = head_dim / 2;
  const auto* row = static_cast<const Bf16*>(p.qkv.data) + BlockX() * p.qkv.row_stride;
  auto* out = static_cast<Bf16*>(p.sink_query.data) + BlockX() * p.sink_query.row_stride;
  const float* cos_sin = p.sink_cos_sin + int64_t{BlockX()} * half * 2;
  const float query_scale = p.query_scale == nullptr ? 1.0f : LoadUniform(p.query_scale + BlockX());
  for (int piece = ThreadX(); piece < p.query_heads * half; piece += kThreads) {
    const int head = piece / half * head_dim, i = piece % half;
    const int first = head + FirstOfPair(p.style, i), second = head + SecondOfPair(p.style, i, half);
    const float a = ToFloat(LoadGlobal(row + first)), b = ToFloat(LoadGlobal(row + second));
    const float cosine = LoadGlobal(cos_sin + 2 * i), sine = LoadGlobal(cos_sin + 2 * i + 1);
    StoreGlobal(out + first, FromFloat<Bf16>((a * cosine - b * sine) * query_scale));
    StoreGlobal(out + second, FromFloat<Bf16>((b * cosine + a * sine) * query_scale));
  }
}

// Grid: (pairs, 16). Bytes: read and written count * page_bytes each (+ 8 read by a block).
TM_KERNEL void CopyPagesKernel(CopyPagesParams p) {
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
  return TM_LAUNCH(RmsNormKernel, GridOf(params.rows), Dim3{kThreads}, kThreads / 32 * sizeof(float),
                   static_cast<Stream>(stream), params);
}
int LaunchGatherColumns(const GatherColumnsParams& params, void* stream) {
  return TM_LAUNCH(GatherColumnsKernel, GridOf(params.rows), Dim3{kThreads}, 0, static_cast<Stream>(stream),
                   params);
}
int LaunchSwiGlu(const SwiGluKernelParams& params, void* stream) {
  return TM_LAUNCH(SwiGluKernel, GridOf(params.rows), Dim3{kThreads}, 0, static_cast<Stream>(stream), params);
}
int LaunchRopeTable(const RopeTableParams& params, void* stream) {
  return TM_LAUNCH(RopeTableKernel, GridOf(params.tokens), Dim3{kThreads}, 0, static_cast<Stream>(stream),
                   params);
}
int LaunchRopeAppend(const RopeAppendParams& params, void* stream) {
  const Dim3 grid = GridOf(static_cast<int32_t>(params.qkv.rows));
  if (params.kv.format.element.dtype == DType::kF16) {
    return TM_LAUNCH(RopeAppendKernel<F16>, grid, Dim3{kThreads}, 0, static_cast<Stream>(stream), params);
  }
  return TM_LAUNCH(RopeAppendKernel<Bf16>, grid, Dim3{kThreads}, 0, static_cast<Stream>(stream), params);
}
int LaunchRopeSinkQuery(const RopeAppendParams& params, void* stream) {
  return TM_LAUNCH(RopeSinkQueryKernel, GridOf(static_cast<int32_t>(params.qkv.rows)), Dim3{kThreads}, 0,
                   static_cast<Stream>(stream), params);
}
int LaunchCopyPages(const CopyPagesParams& params, void* stream) {
  return TM_LAUNCH(CopyPagesKernel, GridOf(params.count, 16), Dim3{kThreads}, 0, static_cast<Stream>(stream),
                   params);
}

}  // namespace tramontane::cuda
