// Linear layers for 1 to 16 rows: y = x W^T with W read exactly once, straight into tensor-core fragments.
//
// Shapes: x [rows, K] bf16; W [N, K] bf16 row-major; out [rows, N] bf16 or f32 (N / 2 for SwiGLU).
// Grid:   (ceil(N / 16)) blocks of 8 warps. A block makes 16 outputs for all rows; warp w takes every eighth
//         block of 32 along K (w, w + 8, ...). The eight partial sums are added in warp order.
// Bytes:  in all N * K * 2 of W: the bound. Each block besides
//         reads   rows * K * 2 of x, or for a fused norm rows * K * (2 + 2 + 4): x twice and norm_weight;
//                 rows * 128 where rows are gathered (each of 32 threads reads a row's number);
//                 for kAddResidual what it writes; all of it from the caches but once;
//         writes  rows * 16 outputs (8 for SwiGLU) of 2 or 4 bytes, fewer in the last block.
// Limits: rows 1..16, K a multiple of 32; N any, for SwiGLU a multiple of 16; sm_80 and later.
// Math:   products of bf16 in f32 sums; gate and up rounded to bf16 before silu, as the large path does.
// Ideas:  weights as the M operand so that few rows waste little (swapped operands, as skinny GEMMs of
//         TensorRT-LLM do); the order of k inside an mma is free, so a lane takes 8 neighbours of a row in
//         one 16-byte load.
//
// How k is dealt: a block of 32 feeds two mma. Lane (g, t) loads k = 8t .. 8t+7 of W's rows g and g+8 and of
// x's row g: words 0 and 1 are the fragments' low and high halves of the first mma, words 2 and 3 of the
// second.
#include "kernels/cuda/linear_small.h"

#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kTileOut = 16;
constexpr int kBlockK = 32;
constexpr int kAhead = 4;  // blocks of W in flight per lane: 128 bytes
constexpr int kMaxSharedRowBytes = 96 * 1024;
constexpr int kRowPadBytes = 64;  // rows g and g+1 of x then fall into different halves of the banks

TM_DEVICE float Silu(float x) { return x / (1.0f + Exp2(-1.4426950408889634f * x)); }

constexpr int64_t SharedRowBytes(int32_t in_features) { return int64_t{in_features} * 2 + kRowPadBytes; }

TM_DEVICE uint32_t NormalisePair(uint32_t pair, float scale, const float* weight) {
  const float low = ToFloat(Bf16{static_cast<uint16_t>(pair)}),
              high = ToFloat(Bf16{static_cast<uint16_t>(pair >> 16)});
  return PackPair<Bf16>(low * (scale * LoadGlobal(weight)), high * (scale * LoadGlobal(weight + 1)));
}

// Normalises every row of x into shared memory, a warp a row.
TM_DEVICE void NormaliseRows(const SmallLinearParams& p, std::byte* shared) {
  const int warp = ThreadX() / 32, lane = LaneId();
  for (int r = warp; r < p.rows; r += kWarps) {
    const int64_t row = p.x_rows == nullptr ? r : LoadGlobal(p.x_rows + r);
    const auto* x = static_cast<const Bf16*>(p.x) + row * p.x_stride;
    float sum = 0.0f;
    for (int i = lane * 8; i < p.in_features; i += 256) {
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
    const float scale = ReciprocalSqrt(sum / static_cast<float>(p.in_features) + p.epsilon);
    for (int i = lane * 8; i < p.in_features; i += 256) {
      Vector16 piece = LoadGlobal16(x + i);
      TM_UNROLL
      for (int j = 0; j < 4; ++j)
        piece.word[j] = NormalisePair(piece.word[j], scale, p.norm_weight + i + 2 * j);
      StoreShared16(shared + r * SharedRowBytes(p.in_features) + i * 2, piece);
    }
  }
}

// The first two blocks of W that each warp reads, while other kernels still run.
TM_DEVICE void PrefetchFirstBlocks(const SmallLinearParams& p, int first_out) {
  const int warp = ThreadX() / 32, lane = LaneId();
  const int64_t out = first_out + lane % kTileOut;
  const int k = (warp + lane / kTileOut * kWarps) * kBlockK;
  if (out < p.out_features && k < p.in_features) {
    PrefetchConstant(static_cast<const Bf16*>(p.weight) + out * p.in_features + k);
  }
}

}  // namespace

// kRowTiles: groups of eight rows of x. kNorm: x is normalised into shared memory first.
template <int kRowTiles, bool kNorm>
TM_KERNEL void SmallLinearKernel(SmallLinearParams p) {
  const int warp = ThreadX() / 32, lane = LaneId(), g = lane / 4, t = lane % 4;
  const int first_out = BlockX() * kTileOut;
  PrefetchFirstBlocks(p, first_out);
  AwaitPriorKernels();
  std::byte* normalised = SharedBytes();
  if (kNorm) {
    NormaliseRows(p, normalised);
    SyncThreads();
  }

  // This lane's rows of W and of x; null where there is none.
  const Bf16* weight[2];
  TM_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int64_t out = first_out + g + 8 * i;
    weight[i] = out < p.out_features ? static_cast<const Bf16*>(p.weight) + out * p.in_features : nullptr;
  }
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
  const int blocks = p.in_features / kBlockK;
  for (int first = warp; first < blocks; first += kWarps * kAhead) {
    Vector16 w[kAhead][2] = {};
    TM_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      const int k = (first + a * kWarps) * kBlockK + 8 * t;
      TM_UNROLL
      for (int i = 0; i < 2; ++i) {
        if (first + a * kWarps < blocks && weight[i] != nullptr) w[a][i] = LoadGlobal16Once(weight[i] + k);
      }
    }
    TM_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      const int k = (first + a * kWarps) * kBlockK + 8 * t;
      TM_UNROLL
      for (int n = 0; n < kRowTiles; ++n) {
        Vector16 x = {};
        if (first + a * kWarps < blocks && row[n] != nullptr) {
          x = kNorm ? LoadShared16(row[n] + k * 2) : LoadGlobal16(row[n] + k * 2);
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

  // Partial sums to shared memory: [kWarps][kRowTiles * 8 rows][16 outputs]; then a thread an output, warps
  // in order.
  if (kNorm) SyncThreads();
  auto* partial = reinterpret_cast<float*>(SharedBytes());
  constexpr int kRows = kRowTiles * 8;
  TM_UNROLL
  for (int n = 0; n < kRowTiles; ++n) {
    TM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int out = g + 8 * (i / 2), r = n * 8 + 2 * t + i % 2;
      partial[(warp * kRows + r) * kTileOut + out] = sum[n][i];
    }
  }
  SyncThreads();
  auto total = [&](int r, int out) {
    float value = 0.0f;
    TM_UNROLL
    for (int w = 0; w < kWarps; ++w) value += partial[(w * kRows + r) * kTileOut + out];
    return value;
  };
  if (p.epilogue == Epilogue::kSwiGlu) {
    for (int i = ThreadX(); i < p.rows * 8; i += kThreads) {
      const int r = i / 8, out = i % 8;
      const float gate = ToFloat(FromFloat<Bf16>(total(r, out)));
      const float up = ToFloat(FromFloat<Bf16>(total(r, out + 8)));
      StoreGlobal(static_cast<Bf16*>(p.out) + r * p.out_stride + first_out / 2 + out,
                  FromFloat<Bf16>(Silu(gate) * up));
    }
    return;
  }
  for (int i = ThreadX(); i < p.rows * kTileOut; i += kThreads) {
    const int r = i / kTileOut, out = i % kTileOut;
    if (first_out + out >= p.out_features) continue;
    const int64_t at = r * p.out_stride + first_out + out;
    float value = total(r, out);
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

template <int kRowTiles, bool kNorm>
int Launch(const SmallLinearParams& p, Stream stream) {
  const int64_t partial = int64_t{kWarps} * kRowTiles * 8 * kTileOut * 4;
  const int64_t rows = kNorm ? p.rows * SharedRowBytes(p.in_features) : 0;
  const auto shared = static_cast<int>(partial > rows ? partial : rows);
  if (const int error = AllowSharedBytes(SmallLinearKernel<kRowTiles, kNorm>, shared)) return error;
  const Dim3 grid{static_cast<unsigned>((p.out_features + kTileOut - 1) / kTileOut), 1, 1};
  return TM_LAUNCH((SmallLinearKernel<kRowTiles, kNorm>), grid, Dim3{kThreads}, shared, stream, p);
}

}  // namespace

bool SmallLinearSupported(const SmallLinearParams& p) {
  const bool fits =
      p.prologue == Prologue::kNone || p.rows * SharedRowBytes(p.in_features) <= kMaxSharedRowBytes;
  return p.rows >= 1 && p.rows <= kSmallLinearRows && p.in_features % kBlockK == 0 && fits &&
         (p.epilogue != Epilogue::kSwiGlu || p.out_features % kTileOut == 0);
}

int LaunchSmallLinear(const SmallLinearParams& p, void* stream) {
  auto* s = static_cast<Stream>(stream);
  if (p.prologue == Prologue::kRmsNorm) return p.rows <= 8 ? Launch<1, true>(p, s) : Launch<2, true>(p, s);
  return p.rows <= 8 ? Launch<1, false>(p, s) : Launch<2, false>(p, s);
}

}  // namespace tramontane::cuda
