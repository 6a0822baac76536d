// Linear layers for 1 to 16 rows: y = x W^T with W read exactly once, straight into tensor-core fragments.
//
// Shapes: x [rows, K] bf16; W [N, K] bf16 row-major or in blocks (blocks.h), decoded in registers, as is fp8
//         that stands row by row;
//         out [rows, N] bf16 or f32 (N / 2 for SwiGLU).
// Grid:   (ceil(N / 16)) blocks of 8 warps. A block makes 16 outputs for all rows; warp w takes every eighth
//         block of 32 along K (w, w + 8, ...), or unit, of bf16 with what is left of one. The eight partial
//         sums are added in warp order.
// Bytes:  in all N * K times the bits of W's type, with N filled up to sixteens (of bf16 by its last row once
//         more), in bits: bf16 16, q8_0 8.5, q4_0 4.5, q4_1 5, q5_0 5.5, q5_1 6, q4_k 4.5, q5_k 5.5, q6_k
//         6.5625, groups 4 or 8 and what a group has besides over its size (int4 of 128 with f16 scales
//         4.125), fp8 in rows 8: the bound. Each block besides
//         reads   rows * K * 2 of x, or for a fused norm rows * K * (2 + 2 + 4): x twice and norm_weight;
//                 where rows are gathered rows * 128 (each of 32 threads reads a row's number), with a norm
//                 rows * 8;
//                 for kAddResidual what it writes; all of it from the caches but once;
//                 of fp8 in rows 512 of scales: each of the 8 warps its 16 rows';
//         writes  rows * 16 outputs (8 for SwiGLU) of 2 or 4 bytes, fewer in the last block.
// Limits: rows 1..16, over blocks with a norm 1..8; K a multiple of 8 of bf16, of 32 of groups, else whole
//         units; N any, for SwiGLU a multiple of 16; sm_80 and later.
// Math:   products of bf16 in f32 sums; of types that ScalesSums (blocks.h) products of codes, a tile's sums
//         of which are scaled in f32; gate and up rounded to bf16 before silu, as the large path does.
// Ideas:  weights as the M operand so that few rows waste little (swapped operands, as skinny GEMMs of
//         TensorRT-LLM do); the order of k inside an mma is free, so a lane takes 8 neighbours of a row in
//         one 16-byte load; codes become bf16 as the lowest bits of 128 (FasterTransformer, Marlin).
// How k is dealt: linear_small.cuh, which holds the loop.
#include "kernels/cuda/linear_small.h"

#include "kernels/cuda/linear_small.cuh"
#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

namespace {

constexpr int kThreads = kSmallWarps * 32;
constexpr int kMaxSharedRowBytes = 96 * 1024;
constexpr int kRowPadBytes = 64;  // rows g and g+1 of x then fall into different halves of the banks

constexpr int64_t SharedRowBytes(int32_t in_features) { return int64_t{in_features} * 2 + kRowPadBytes; }

TM_DEVICE float LowHalf(uint32_t pair) { return ToFloat(Bf16{static_cast<uint16_t>(pair)}); }
TM_DEVICE float HighHalf(uint32_t pair) { return ToFloat(Bf16{static_cast<uint16_t>(pair >> 16)}); }

// Normalises every row of x into shared memory, all warps a row. Their sums lie in its padding. Loops stay
// rolled, since a thread has one turn or two and the first weights its registers.
TM_DEVICE void NormaliseRows(const SmallLinearParams& p, std::byte* shared) {
  const int64_t row_bytes = SharedRowBytes(p.in_features);
  const auto row_of = [&](int r) {
    const int64_t row = p.x_rows == nullptr ? r : LoadUniform(p.x_rows + r);
    return static_cast<const Bf16*>(p.x) + row * p.x_stride;
  };
  const auto sums_of = [&](int r) {
    return reinterpret_cast<float*>(shared + r * row_bytes + int64_t{p.in_features} * 2);  // [kSmallWarps]
  };
  for (int r = 0; r < p.rows; ++r) {
    const Bf16* const x = row_of(r);
    float sum = 0.0f;
    TM_ROLLED
    for (int i = ThreadX() * 8; i < p.in_features; i += kThreads * 8) {
      const Vector16 piece = LoadGlobal16(x + i);
      TM_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float low = LowHalf(piece.word[j]), high = HighHalf(piece.word[j]);
        sum += low * low + high * high;
      }
    }
    TM_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) sum += ShuffleXor(sum, mask);
    if (LaneId() == 0) sums_of(r)[ThreadX() / 32] = sum;
  }
  SyncThreads();
  for (int r = 0; r < p.rows; ++r) {
    const Bf16* const x = row_of(r);
    float sum = 0.0f;
    TM_UNROLL
    for (int w = 0; w < kSmallWarps; ++w) sum += sums_of(r)[w];
    const float scale = ReciprocalSqrt(sum / static_cast<float>(p.in_features) + p.epsilon);
    TM_ROLLED
    for (int i = ThreadX() * 8; i < p.in_features; i += kThreads * 8) {
      Vector16 piece = LoadGlobal16(x + i);
      const Vector16 weight[2] = {LoadGlobal16(p.norm_weight + i), LoadGlobal16(p.norm_weight + i + 4)};
      TM_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float low = scale * FloatOf(weight[j / 2].word[j % 2 * 2]);
        const float high = scale * FloatOf(weight[j / 2].word[j % 2 * 2 + 1]);
        piece.word[j] = PackPair<Bf16>(LowHalf(piece.word[j]) * low, HighHalf(piece.word[j]) * high);
      }
      StoreShared16(shared + r * row_bytes + i * 2, piece);
    }
  }
}

// The first lines of this block's units, a thread a line, while other kernels still run. Of fp8 in rows those
// of each row.
template <typename Type>
TM_DEVICE void PrefetchFirstUnits(const SmallLinearParams& p) {
  if constexpr (Type::kInRows) {
    constexpr int kLines = kThreads / kSmallTileOut;  // of a row
    const int64_t row = BlockX() * kSmallTileOut + ThreadX() / kLines, byte = ThreadX() % kLines * 128;
    if (byte < p.in_features) {
      PrefetchConstant(static_cast<const std::byte*>(p.weight) + row * p.in_features + byte);
    }
  } else {
    const int64_t bytes = BytesOfUnitRows<Type>(p.weight_format, p.in_features),
                  line = int64_t{ThreadX()} * 128;
    if (line < bytes) PrefetchConstant(static_cast<const std::byte*>(p.weight) + BlockX() * bytes + line);
  }
}

// With a norm before it the compiler gives a loop over whole bytes more registers than four blocks have.
template <typename Type>
constexpr bool kTakesBytes = Type::kLayout.low_bits == 8;
template <>
constexpr bool kTakesBytes<Bf16> = false;

}  // namespace

// Type: Bf16, or that of W's blocks. kRowTiles: groups of eight rows of x. kNorm: x is normalised into shared
// memory first.
template <typename Type, int kRowTiles, bool kNorm>
TM_KERNEL TM_BOUNDS(kThreads,
                    (kNorm && kTakesBytes<Type> ? 4 : 0)) void SmallLinearKernel(SmallLinearParams p) {
  const int g = LaneId() / 4;
  const int first_out = BlockX() * kSmallTileOut;
  // Weights depend on no kernel: a warp's first ones come while others still run.
  const SmallRows rows = {static_cast<const Bf16*>(p.weight), first_out, p.out_features, p.in_features};
  SmallWeights weights;  // where they are bf16
  if constexpr (kIsBf16<Type>) {
    weights = LoadSmallWeights(rows);
  } else {
    PrefetchFirstUnits<Type>(p);
  }
  AwaitPriorKernels();
  std::byte* normalised = SharedBytes();
  if (kNorm) {
    NormaliseRows(p, normalised);
    SyncThreads();
  }

  // This lane's rows of x; null where there is none.
  const std::byte* row[kRowTiles];
  TM_UNROLL
  for (int n = 0; n < kRowTiles; ++n) {
    const int r = n * 8 + g;
    row[n] = nullptr;
    if (r >= p.rows) continue;
    if (kNorm) {
      row[n] = normalised + r * SharedRowBytes(p.in_features);
    } else {
      const int64_t from = p.x_rows == nullptr ? r : LoadGlobal(p.x_rows + r);
      row[n] = reinterpret_cast<const std::byte*>(static_cast<const Bf16*>(p.x) + from * p.x_stride);
    }
  }

  float sum[kRowTiles][4] = {};
  if constexpr (kIsBf16<Type>) {
    MultiplySmallTile<kRowTiles, kNorm>(rows, weights, row, sum);
    MultiplySmallRest<kRowTiles, kNorm>(rows, row, sum);
  } else {
    const std::byte* units = static_cast<const std::byte*>(p.weight) +
                             BlockX() * BytesOfUnitRows<Type>(p.weight_format, p.in_features);
    if constexpr (Type::kInRows) {
      MultiplySmallScaled<Type, kRowTiles, kNorm>(units, p.weight_format, row, p.in_features, sum,
                                                  p.row_scales + first_out);
    } else {
      MultiplySmallBlocks<Type, kRowTiles, kNorm>(units, p.weight_format, row, p.in_features, sum);
    }
  }

  // A thread an output. The partial sums may lie where the normalised rows did.
  if (kNorm) SyncThreads();
  auto* partial = reinterpret_cast<float*>(SharedBytes());
  StoreSmallPartials(sum, partial);
  if (p.epilogue == Epilogue::kSwiGlu) {
    for (int i = ThreadX(); i < p.rows * 8; i += kThreads) {
      const int r = i / 8, out = i % 8;
      const float gate = ToFloat(FromFloat<Bf16>(SmallTotal<kRowTiles>(partial, r, out)));
      const float up = ToFloat(FromFloat<Bf16>(SmallTotal<kRowTiles>(partial, r, out + 8)));
      StoreGlobal(static_cast<Bf16*>(p.out) + r * p.out_stride + first_out / 2 + out,
                  FromFloat<Bf16>(Silu(gate) * up));
    }
    return;
  }
  for (int i = ThreadX(); i < p.rows * kSmallTileOut; i += kThreads) {
    const int r = i / kSmallTileOut, out = i % kSmallTileOut;
    if (first_out + out >= p.out_features) continue;
    const int64_t at = r * p.out_stride + first_out + out;
    float value = SmallTotal<kRowTiles>(partial, r, out);
    if (p.out_dtype == DType::kF32) {
      StoreGlobal(static_cast<float*>(p.out) + at, value);
    } else {
      Bf16* place = static_cast<Bf16*>(p.out) + at;
      if (p.epilogue == Epilogue::kAddResidual) value += ToFloat(LoadGlobal(place));
      StoreGlobal(place, FromFloat<Bf16>(value));
    }
  }
}

namespace {

template <typename Type, int kRowTiles, bool kNorm>
int Launch(const SmallLinearParams& p, Stream stream) {
  const int64_t partial = kSmallPartialBytes<kRowTiles>;
  const int64_t rows = kNorm ? p.rows * SharedRowBytes(p.in_features) : 0;
  const auto shared = static_cast<int>(partial > rows ? partial : rows);
  constexpr int kMost = kNorm ? kMaxSharedRowBytes : static_cast<int>(kSmallPartialBytes<kRowTiles>);
  static_assert(kMost >= kSmallPartialBytes<kRowTiles>);
  if (const int error = AllowSharedBytes<SmallLinearKernel<Type, kRowTiles, kNorm>, kMost>()) return error;
  const Dim3 grid{static_cast<unsigned>((p.out_features + kSmallTileOut - 1) / kSmallTileOut), 1, 1};
  return TM_LAUNCH((SmallLinearKernel<Type, kRowTiles, kNorm>), grid, Dim3{kThreads}, shared, stream, p);
}

}  // namespace

bool SmallLinearSupported(const SmallLinearParams& p) {
  const bool norm = p.prologue == Prologue::kRmsNorm, bf16 = p.weight_format == DType::kBf16;
  const bool fits = !norm || p.rows * SharedRowBytes(p.in_features) <= kMaxSharedRowBytes;
  const int32_t most_rows = norm && !bf16 ? 8 : kSmallLinearRows;
  const int32_t k_multiple = bf16                          ? kSmallPieceK
                             : p.weight_format.in_groups() ? kSmallBlockK
                                                           : LayoutOf(p.weight_format).numbers();
  return p.rows >= 1 && p.rows <= most_rows && p.in_features % k_multiple == 0 && fits &&
         (p.epilogue != Epilogue::kSwiGlu || p.out_features % kSmallTileOut == 0);
}

int LaunchSmallLinear(const SmallLinearParams& p, void* stream) {
  auto* s = static_cast<Stream>(stream);
  const bool norm = p.prologue == Prologue::kRmsNorm;
  const auto launch_blocks = [&]<typename Type>(Type) {
    if (norm) return Launch<Type, 1, true>(p, s);
    return p.rows <= 8 ? Launch<Type, 1, false>(p, s) : Launch<Type, 2, false>(p, s);
  };
  if (p.row_scales != nullptr) return launch_blocks(Fp8Rows());
  if (p.weight_format != DType::kBf16) return WithBlocks(p.weight_format.dtype, launch_blocks);
  if (norm) return p.rows <= 8 ? Launch<Bf16, 1, true>(p, s) : Launch<Bf16, 2, true>(p, s);
  return p.rows <= 8 ? Launch<Bf16, 1, false>(p, s) : Launch<Bf16, 2, false>(p, s);
}

}  // namespace tramontane::cuda
