// Rotary embedding with append to quantised pages. Shapes: RopeAppendParams; bf16 qkv.
//
// Grid:   (tokens, blocks of 128 threads for the queries, then such for keys and values): a thread takes
//         sixteen numbers of a query (rope.cuh), or eight of a key or value. The lanes that hold a group find
//         its largest number among themselves; nothing is shared otherwise.
// Bytes:  d = head_dim; a token reads query_heads * 6d and for each kv head 14d (eight numbers of a key come
//         with their partners and eight cos and sin), of interleaved pairs 8d, without angles 4d; for fp8
//         with scales 4 a piece; 8 a block of keys and values. It writes query_heads * 2d and
//         KvFormat::TokenBytes. A padded one (slot < 0): its queries only. With query scales 4 more a block
//         of queries.
// Limits: head_dim a multiple of 16; rows of qkv at multiples of 16 bytes; int8 and int4 in groups of 8 to
// 128, fp8. Math:   products of the rotation are rounded each, as on the CPU, so the same row gives the same
// bytes.
#include "kernels/cuda/device_pages.cuh"
#include "kernels/cuda/kv_numbers.cuh"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/rope.cuh"

namespace tramontane::cuda {

namespace {

constexpr int kThreads = 128;

constexpr int kUnitPiece = 8;  // numbers of a unit's piece: 16 bytes

TM_DEVICE float Turned(float own, float partner, float cosine, float sine, bool is_second) {
  const float along = MultiplyUnfused(own, cosine), across = MultiplyUnfused(partner, sine);
  return is_second ? across + along : along - across;
}

// Numbers first .. first + 7 of a head after its rotation.
TM_DEVICE KvNumbers TurnedPiece(const Bf16* head, const float* cos_sin, RotaryStyle style, int first,
                                int half) {
  const Floats<kKvPiece> own = LoadNumbers<kKvPiece>(head + first);
  KvNumbers out;
  if (cos_sin == nullptr) {
    TM_UNROLL
    for (int i = 0; i < kKvPiece; ++i) out.value[i] = own.value[i];
  } else if (style == RotaryStyle::kHalfSplit) {
    const bool is_second = first >= half;
    const int pair = is_second ? first - half : first;
    const Floats<kKvPiece> partner = LoadNumbers<kKvPiece>(head + (is_second ? pair : first + half));
    const Floats<2 * kKvPiece> angle = LoadFloats<2 * kKvPiece>(cos_sin + 2 * pair);
    TM_UNROLL
    for (int i = 0; i < kKvPiece; ++i) {
      out.value[i] =
          Turned(own.value[i], partner.value[i], angle.value[2 * i], angle.value[2 * i + 1], is_second);
    }
  } else {
    const Floats<kKvPiece> angle = LoadFloats<kKvPiece>(cos_sin + first);
    TM_UNROLL
    for (int i = 0; i < kKvPiece; ++i) {
      out.value[i] =
          Turned(own.value[i], own.value[i ^ 1], angle.value[i & ~1], angle.value[i | 1], i % 2 == 1);
    }
  }
  return out;
}

TM_DEVICE void TurnQueryUnit(const RopeAppendParams& p, int index) {
  const int head_dim = p.kv.format.head_dim, half = head_dim / 2, units = half / kUnitPiece;
  const float scale = p.query_scale == nullptr ? 1.0f : LoadUniform(p.query_scale + BlockX());
  const int head = index / units, unit_index = index % units;
  if (head >= p.query_heads) return;
  const RopePlaces at = PlacesOfUnit<kUnitPiece>(p.style, unit_index, half);
  Bf16* const query = static_cast<Bf16*>(p.qkv.data) + BlockX() * p.qkv.row_stride + head * head_dim;
  RopeUnit<kUnitPiece> unit = LoadUnit<kUnitPiece>(query, at);
  if (p.cos_sin != nullptr) {
    TurnUnit(p.style, p.cos_sin + (int64_t{BlockX()} * half + unit_index * kUnitPiece) * 2, &unit);
  }
  ScaleUnit(scale, &unit);
  StoreUnit(query, at, unit);
}

}  // namespace

TM_KERNEL TM_BOUNDS(kThreads) void RopeAppendQuantisedKernel(RopeAppendParams p, PageDivisor divisor,
                                                             int query_blocks, bool wide) {
  AwaitPriorKernels();
  if (BlockY() < query_blocks) {
    TurnQueryUnit(p, BlockY() * kThreads + ThreadX());
    return;
  }
  const int64_t slot = LoadUniform(p.slots + BlockX());
  if (slot < 0) return;

  const KvFormat& format = p.kv.format;
  const int head_dim = format.head_dim, half = head_dim / 2, kv_heads = format.kv_heads;
  const auto [page, offset] = PlaceOfSlot(divisor, slot);
  const Format element = format.element;
  const bool is_fp8 = element.dtype == DType::kFp8E4M3;
  const int pieces_of_head = head_dim / kKvPiece, pieces = 2 * kv_heads * pieces_of_head;
  const int bytes = KvPieceBytes(element), lanes = is_fp8 ? 1 : (1 << element.block_log2) / kKvPiece;
  const int index = (BlockY() - query_blocks) * kThreads + ThreadX();
  const bool live = index < pieces;  // whole warps go on: lanes of a group meet
  const int piece = live ? index : pieces - 1;
  const bool is_value = piece >= kv_heads * pieces_of_head;
  const int head = piece / pieces_of_head % kv_heads, first = piece % pieces_of_head * kKvPiece;
  KvNumbers numbers = {};
  if (live) {
    const Bf16* const from = static_cast<const Bf16*>(p.qkv.data) + BlockX() * p.qkv.row_stride +
                             (p.query_heads + piece / pieces_of_head) * head_dim;
    const bool turns = !is_value && p.cos_sin != nullptr;
    numbers =
        TurnedPiece(from, turns ? p.cos_sin + int64_t{BlockX()} * head_dim : nullptr, p.style, first, half);
  }
  std::byte* const vector = is_value ? p.kv.Value(page, head, offset) : p.kv.Key(page, head, offset);
  std::byte* const scales =
      is_value ? p.kv.scale.Value(page, head, offset) : p.kv.scale.Key(page, head, offset);
  std::byte* const to = vector + first / kKvPiece * bytes;
  if (is_fp8) {
    const bool has_scale = p.kv.scale.scales != nullptr;
    const float scale = live && has_scale ? LoadGlobal(reinterpret_cast<const float*>(scales)) : 1.0f;
    if (live) StoreKvPiece(to, Fp8KvPiece(numbers, scale), bytes, wide);
    return;
  }
  uint16_t bits = 0;
  const float scale = KvGroupScale(element, LargestOfGroup(numbers, lanes), &bits);
  if (!live) return;
  StoreKvPiece(to, QuantisedKvPiece(element.dtype, numbers, scale), bytes, wide);
  if (ThreadX() % lanes != 0) return;
  std::byte* const at = scales + (first >> element.block_log2) * element.companion_bytes;
  if (element.scale == DType::kF32) {
    StoreGlobal(reinterpret_cast<float*>(at), scale);
  } else {
    StoreGlobal(reinterpret_cast<uint16_t*>(at), bits);
  }
}

int LaunchRopeAppendQuantised(const RopeAppendParams& params, void* stream) {
  const KvFormat& format = params.kv.format;
  const auto blocks_of = [](int32_t items) { return (items + kThreads - 1) / kThreads; };
  const int32_t query_blocks = blocks_of(params.query_heads * (format.head_dim / (2 * kUnitPiece)));
  const int32_t kv_blocks = blocks_of(2 * format.kv_heads * (format.head_dim / kKvPiece));
  const Dim3 grid{static_cast<unsigned>(params.qkv.rows), static_cast<unsigned>(query_blocks + kv_blocks), 1};
  return TM_LAUNCH(RopeAppendQuantisedKernel, grid, Dim3{kThreads}, 0, static_cast<Stream>(stream), params,
                   PageDivisor(format.page_size), query_blocks, AreWide(params.kv));
}

}  // namespace tramontane::cuda
