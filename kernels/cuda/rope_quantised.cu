// Rotary embedding with append to quantised pages. Shapes: RopeAppendParams; bf16 qkv.
//
// Grid:   (tokens) of 128 threads: pairs of query heads, then pieces of eight numbers of keys and values. The
//         lanes that hold a group find its largest number among themselves; nothing is shared otherwise.
// Bytes:  d = head_dim; a token reads 8 + query_heads * 6d + kv_heads * 14d (an element of a key comes with
//         its partner, cos and sin; one of a value alone), without angles kv_heads * 4d, and for fp8 with
//         scales 4 a piece; it writes query_heads * 2d and KvFormat::TokenBytes. A padded one (slot
//         < 0): its queries only. With query scales a token reads 4 more.
// Limits: head_dim a multiple of 16; int8 and int4 in groups of 8 to 128, fp8.
// Math:   products of the rotation are rounded each, as on the CPU, so the same row gives the same bytes.
#include "kernels/cuda/kv_numbers.cuh"
#include "kernels/cuda/pointwise.h"

namespace tramontane::cuda {

namespace {

constexpr int kThreads = 128;

// Of an element of a head: where the other one of its pair lies, and which pair it is.
struct PairOf {
  int partner, index;
  bool is_second;
};
TM_DEVICE PairOf PairAt(RotaryStyle style, int d, int half) {
  if (style == RotaryStyle::kInterleaved) return {d ^ 1, d / 2, d % 2 == 1};
  return d < half ? PairOf{d + half, d, false} : PairOf{d - half, d - half, true};
}

// An element after the rotation of its head.
TM_DEVICE float Turned(const Bf16* head, const float* cos_sin, RotaryStyle style, int d, int half) {
  const float own = ToFloat(LoadGlobal(head + d));
  if (cos_sin == nullptr) return own;
  const PairOf pair = PairAt(style, d, half);
  const float other = ToFloat(LoadGlobal(head + pair.partner));
  const float cosine = LoadGlobal(cos_sin + 2 * pair.index), sine = LoadGlobal(cos_sin + 2 * pair.index + 1);
  const float along = MultiplyUnfused(own, cosine), across = MultiplyUnfused(other, sine);
  return pair.is_second ? across + along : along - across;
}

}  // namespace

TM_KERNEL void RopeAppendQuantisedKernel(RopeAppendParams p, bool wide) {
  AwaitPriorKernels();
  const KvFormat& format = p.kv.format;
  const int head_dim = format.head_dim, half = head_dim / 2, kv_heads = format.kv_heads;
  auto* row = static_cast<Bf16*>(p.qkv.data) + BlockX() * p.qkv.row_stride;
  const float* cos_sin = p.cos_sin == nullptr ? nullptr : p.cos_sin + int64_t{BlockX()} * half * 2;
  const int64_t slot = LoadUniform(p.slots + BlockX());
  const float query_scale = p.query_scale == nullptr ? 1.0f : LoadUniform(p.query_scale + BlockX());

  for (int piece = ThreadX(); piece < p.query_heads * half; piece += kThreads) {
    Bf16* const head = row + piece / half * head_dim;
    const int i = piece % half;
    const bool split = p.style == RotaryStyle::kHalfSplit;
    Bf16 *const first = head + (split ? i : 2 * i), *const second = head + (split ? i + half : 2 * i + 1);
    const float a = ToFloat(LoadGlobal(first)), b = ToFloat(LoadGlobal(second));
    const float cosine = cos_sin == nullptr ? 1.0f : LoadGlobal(cos_sin + 2 * i);
    const float sine = cos_sin == nullptr ? 0.0f : LoadGlobal(cos_sin + 2 * i + 1);
    StoreGlobal(first, FromFloat<Bf16>((a * cosine - b * sine) * query_scale));
    StoreGlobal(second, FromFloat<Bf16>((b * cosine + a * sine) * query_scale));
  }
  if (slot < 0) return;

  const int64_t page = PageOfSlot(slot, format.page_size);
  const int32_t offset = OffsetOfSlot(slot, format.page_size);
  const Format element = format.element;
  const bool is_fp8 = element.dtype == DType::kFp8E4M3;
  const int pieces_of_head = head_dim / kKvPiece, pieces = 2 * kv_heads * pieces_of_head;
  const int bytes = KvPieceBytes(element), lanes = is_fp8 ? 1 : (1 << element.block_log2) / kKvPiece;
  for (int begin = 0; begin < pieces; begin += kThreads) {  // whole warps: lanes of a group meet
    const bool live = begin + ThreadX() < pieces;
    const int piece = live ? begin + ThreadX() : pieces - 1;
    const bool is_value = piece >= kv_heads * pieces_of_head;
    const int head = piece / pieces_of_head % kv_heads, first = piece % pieces_of_head * kKvPiece;
    const Bf16* const from = row + (p.query_heads + piece / pieces_of_head) * head_dim;
    KvNumbers numbers = {};
    TM_UNROLL
    for (int i = 0; live && i < kKvPiece; ++i) {
      numbers.value[i] = Turned(from, is_value ? nullptr : cos_sin, p.style, first + i, half);
    }
    std::byte* const vector = is_value ? p.kv.Value(page, head, offset) : p.kv.Key(page, head, offset);
    std::byte* const scales =
        is_value ? p.kv.scale.Value(page, head, offset) : p.kv.scale.Key(page, head, offset);
    std::byte* const to = vector + first / kKvPiece * bytes;
    if (is_fp8) {
      const bool has_scale = p.kv.scale.scales != nullptr;
      const float scale = live && has_scale ? LoadGlobal(reinterpret_cast<const float*>(scales)) : 1.0f;
      if (live) StoreKvPiece(to, Fp8KvPiece(numbers, scale), bytes, wide);
      continue;
    }
    uint16_t bits = 0;
    const float scale = KvGroupScale(element, LargestOfGroup(numbers, lanes), &bits);
    if (!live) continue;
    StoreKvPiece(to, QuantisedKvPiece(element.dtype, numbers, scale), bytes, wide);
    if (ThreadX() % lanes != 0) continue;
    std::byte* const at = scales + (first >> element.block_log2) * element.companion_bytes;
    if (element.scale == DType::kF32) {
      StoreGlobal(reinterpret_cast<float*>(at), scale);
    } else {
      StoreGlobal(reinterpret_cast<uint16_t*>(at), bits);
    }
  }
}

int LaunchRopeAppendQuantised(const RopeAppendParams& params, void* stream) {
  const Dim3 grid{static_cast<unsigned>(params.qkv.rows), 1, 1};
  return TM_LAUNCH(RopeAppendQuantisedKernel, grid, Dim3{kThreads}, 0, static_cast<Stream>(stream), params,
                   AreWide(params.kv));
}

}  // namespace tramontane::cuda
