// Pages of int8, int4 or fp8 as bf16 pages, of one layer: decode_pages.h.
//
// Shapes: pages of any layout (KvLayerView); decoded pages [kv_heads, page_size, head_dim] bf16, keys and
//         then values, heads and tokens in the order of the format.
// Grid:   ListPagesKernel   (batch), a block a sequence: it adds up what those before it list, and lists its
//                           own pages.
//         DecodePagesKernel as many blocks as the device runs at once, no more than there are halves. A
//                           block takes every so many of the halves (the keys or the values of a page), a
//                           thread eight numbers at a time, four such pieces before it decodes the first.
// Bytes:  listing           block b reads 16b + 20, + 4 where tables are rings, and 4 for each of its pages;
//                           writes 4 and 8 for each, the last one 4 more.
//         decoding          a block reads 4; a half of a page 4, its numbers as they are stored, and for each
//                           8 of them their scale (fp8 without scales none), of which neighbours find the
//                           same in the caches. It writes 2 for each number.
// Limits: head_dim a multiple of 8; groups of 8 and more; less than 2 GiB of bf16 a page.
//         Bound by memory. A lane loads 4 or 8 bytes and stores 16, beside those of its neighbours, so that a
//         warp's accesses are whole lines.
// Math:   each number times its scale, rounded once: the bits that attention_by_row.cu makes of it.
// Notes:  whole pages: what lies behind a sequence's last key is decoded, too, and is as little read as
//         there. A page that several sequences list is decoded for each.
#include "kernels/cuda/decode_pages.h"

#include <algorithm>

#include "kernels/cuda/device_pages.cuh"
#include "kernels/cuda/kv_numbers.cuh"

namespace tramontane::cuda {

// What pages hold.
struct KvInt8 {
  static constexpr DType kType = DType::kInt8;
  static constexpr int kPieceBytes = kKvPiece;
};
struct KvInt4 {
  static constexpr DType kType = DType::kInt4;
  static constexpr int kPieceBytes = kKvPiece / 2;
};
struct KvFp8 {
  static constexpr DType kType = DType::kFp8E4M3;
  static constexpr int kPieceBytes = kKvPiece;
};

namespace {

constexpr int kListThreads = 128;
constexpr int kDecodeThreads = 256;
constexpr int kDecodeBlocks = 6;  // of a multiprocessor
constexpr int kPiecesAtOnce = 4;  // of a thread

// Those in which some row of a sequence sees a key.
TM_DEVICE PageRange PagesThatAreSeen(const ListPagesParams& p, int tokens, int kv_base, int kv_end) {
  if (tokens == 0) return {0, 0};
  const auto first_visible = static_cast<int>(FirstVisible(kv_end - tokens, p.window));
  return PagesOfPositions(p.divisor, Max(kv_base, first_visible), kv_end);
}

// Eight numbers as they are stored, and the bits of their scale: nothing that waits for a load.
struct StoredPiece {
  Vector8 numbers;
  uint32_t scale;
};

// Where the keys or the values of a page begin. fp8 without scales: null, they are 1.
struct StoredHalf {
  const std::byte* numbers;
  const std::byte* scales;
};

// Piece number `piece` of a half in the order of the decoded page.
struct PiecePlace {
  int head, token, in_vector;
};

TM_DEVICE PiecePlace PlaceOfPiece(const DecodePagesParams& p, int piece) {
  const int vector = p.by_pieces.Quotient(piece), in_vector = piece - vector * p.by_pieces.size();
  const int outer = p.by_vectors.Quotient(vector), inner = vector - outer * p.by_vectors.size();
  const bool heads_first = p.kv.format.order == KvOrder::kHnd;
  return {heads_first ? outer : inner, heads_first ? inner : outer, in_vector};
}

// kInOrder: numbers lie as those of the decoded page do, and scales of groups likewise.
template <typename Type, bool kInOrder>
TM_DEVICE StoredPiece LoadStoredPiece(const DecodePagesParams& p, const StoredHalf& half, int piece) {
  constexpr bool kGroups = Type::kType != DType::kFp8E4M3;
  constexpr int kBytes = Type::kPieceBytes;
  const Format& element = p.kv.format.element;
  const std::byte* numbers = half.numbers + piece * kBytes;
  const std::byte* scale = half.scales + (piece * kKvPiece >> element.block_log2) * element.companion_bytes;
  if (!kInOrder || (!kGroups && half.scales != nullptr)) {
    const auto [head, token, in_vector] = PlaceOfPiece(p, piece);
    if (!kInOrder)
      numbers = half.numbers + head * p.kv.head_bytes + token * p.kv.token_bytes + in_vector * kBytes;
    scale = half.scales + head * p.kv.scale.strides.head + token * p.kv.scale.strides.token +
            (in_vector * kKvPiece >> element.block_log2) * element.companion_bytes;
  }
  StoredPiece stored = {};
  stored.numbers = LoadKvPiece(numbers, kBytes, kInOrder || p.wide);
  if (!kGroups && half.scales == nullptr) return stored;
  stored.scale = p.scales_are_f32 ? LoadGlobal(reinterpret_cast<const uint32_t*>(scale))
                                  : LoadGlobal(reinterpret_cast<const uint16_t*>(scale));
  return stored;
}

template <typename Type>
TM_DEVICE Vector16 AsBf16(const DecodePagesParams& p, const StoredHalf& half, const StoredPiece& stored) {
  float scale = p.scales_are_f32 ? FloatOf(stored.scale) : ToFloat(F16{static_cast<uint16_t>(stored.scale)});
  if (Type::kType == DType::kFp8E4M3 && half.scales == nullptr) scale = 1.0f;
  return KvPieceAsBf16<Type::kType>(stored.numbers, scale);
}

}  // namespace

TM_KERNEL TM_BOUNDS(kListThreads) void ListPagesKernel(ListPagesParams p) {
  AwaitPriorKernels();
  auto* const before = reinterpret_cast<int32_t*>(SharedBytes());  // pages of the sequences before
  const int own = BlockX();
  if (ThreadX() == 0) *before = 0;
  SyncThreads();
  int pages_of_thread = 0;
  for (int b = ThreadX(); b < own; b += kListThreads) {
    const int tokens = LoadGlobal(p.qo_indptr + b + 1) - LoadGlobal(p.qo_indptr + b);
    const int kv_base = LoadGlobal(p.table.kv_base + b), kv_end = LoadGlobal(p.table.kv_end + b);
    pages_of_thread += PagesThatAreSeen(p, tokens, kv_base, kv_end).count;
  }
  if (pages_of_thread > 0) AtomicAddShared(before, pages_of_thread);
  SyncThreads();
  const int tokens = LoadUniform(p.qo_indptr + own + 1) - LoadUniform(p.qo_indptr + own);
  const PageRange seen =
      PagesThatAreSeen(p, tokens, LoadUniform(p.table.kv_base + own), LoadUniform(p.table.kv_end + own));
  const PagesOfSequence pages = LoadPages(p.table, own);
  const int begin = *before;
  for (int i = ThreadX(); i < seen.count; i += kListThreads) {
    StoreGlobal(p.listing.sources + begin + i, PageAt(pages, seen.first + i));
    StoreGlobal(p.listing.page_indices + begin + i, begin + i);
  }
  if (ThreadX() != 0) return;
  StoreGlobal(p.listing.first_entry + own, begin - seen.first);
  if (own == GridX() - 1) StoreGlobal(p.listing.count, begin + seen.count);
}

template <typename Type, bool kInOrder>
TM_KERNEL TM_BOUNDS(kDecodeThreads, kDecodeBlocks) void DecodePagesKernel(DecodePagesParams p) {
  AwaitPriorKernels();
  const bool has_scales = p.kv.scale.scales != nullptr;
  const int pieces = p.kv.format.kv_heads * p.kv.format.page_size * p.by_pieces.size();  // of a half
  const int halves = 2 * LoadUniform(p.listing.count);
  for (int number = BlockX(); number < halves; number += GridX()) {
    const int page = number / 2, source = LoadUniform(p.listing.sources + page);
    const bool is_value = number % 2 == 1;
    StoredHalf half = {p.kv.Key(source, 0, 0), has_scales ? p.kv.scale.Key(source, 0, 0) : nullptr};
    std::byte* out = p.decoded.Key(page, 0, 0);
    if (is_value) {
      half.numbers += p.kv.value_offset;
      if (has_scales) half.scales += p.kv.scale.strides.kv;
      out += p.decoded.value_offset;
    }
    for (int first = ThreadX(); first < pieces; first += kPiecesAtOnce * kDecodeThreads) {
      StoredPiece stored[kPiecesAtOnce];
      TM_UNROLL
      for (int i = 0; i < kPiecesAtOnce; ++i) {
        const int piece = first + i * kDecodeThreads;
        if (piece < pieces) stored[i] = LoadStoredPiece<Type, kInOrder>(p, half, piece);
      }
      TM_UNROLL
      for (int i = 0; i < kPiecesAtOnce; ++i) {
        const int piece = first + i * kDecodeThreads;
        if (piece < pieces) StoreGlobal16(out + piece * 16, AsBf16<Type>(p, half, stored[i]));
      }
    }
  }
}

int LaunchListPages(const ListPagesParams& params, void* stream) {
  return TM_LAUNCH(ListPagesKernel, Dim3{static_cast<unsigned>(params.batch)}, Dim3{kListThreads},
                   sizeof(int32_t), static_cast<Stream>(stream), params);
}

namespace {

// Whether a half lies in the order of a decoded one, without a gap: that of a pool of ours.
bool IsInOrder(const KvLayerView& kv) {
  const KvFormat& format = kv.format;
  const int64_t vector_bytes = format.VectorBytes(),
                scale_bytes = format.element.CompanionBytes(format.head_dim);
  const KvStrides& scales = kv.scale.strides;
  const bool scales_are = scale_bytes == 0 || (scales.head == format.HeadStride() * scale_bytes &&
                                               scales.token == format.TokenStride() * scale_bytes);
  return kv.head_bytes == format.HeadStride() * vector_bytes &&
         kv.token_bytes == format.TokenStride() * vector_bytes && scales_are;
}

template <typename Type>
int LaunchDecode(const DecodePagesParams& params, Stream stream) {
  const int64_t blocks =
      std::min<int64_t>(2 * params.most_pages, int64_t{kDecodeBlocks} * params.multiprocessors);
  const Dim3 grid{static_cast<unsigned>(blocks)};
  return params.wide && IsInOrder(params.kv)
             ? TM_LAUNCH((DecodePagesKernel<Type, true>), grid, Dim3{kDecodeThreads}, 0, stream, params)
             : TM_LAUNCH((DecodePagesKernel<Type, false>), grid, Dim3{kDecodeThreads}, 0, stream, params);
}

}  // namespace

int LaunchDecodePages(const DecodePagesParams& given, void* stream) {
  const KvFormat& format = given.kv.format;
  DecodePagesParams params = given;
  params.by_pieces = PageDivisor(format.head_dim / kKvPiece);
  params.by_vectors = PageDivisor(format.order == KvOrder::kHnd ? format.page_size : format.kv_heads);
  params.wide = AreWide(given.kv);
  params.scales_are_f32 = format.element == Format::BareFp8() || format.element.scale == DType::kF32;
  const auto queue = static_cast<Stream>(stream);
  switch (format.element.dtype) {
    case DType::kInt4:
      return LaunchDecode<KvInt4>(params, queue);
    case DType::kInt8:
      return LaunchDecode<KvInt8>(params, queue);
    default:
      return LaunchDecode<KvFp8>(params, queue);
  }
}

}  // namespace tramontane::cuda
