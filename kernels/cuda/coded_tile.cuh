// Quantised keys and values on their way into a tile of attention: copied as they stand in their pages, with
// their scales, while the tile before is worked on, and decoded from one part of shared memory into another.
// So the device's memory is waited for as little as over bf16. Device side; every thread of the block calls
// each.
#pragma once

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/kv_numbers.cuh"

namespace tramontane::cuda {

// A tile in shared memory: numbers of its keys, of its values, scales of its keys, of its values; rows stand
// as far apart as CodedRows says.
template <typename Shape>
struct CodedTile {
  static constexpr int kNumberBytes = kKeyTile * Shape::kHeadDim;                  // of up to 8 bits
  static constexpr int kScaleBytes = kKeyTile * (Shape::kHeadDim / kKvPiece) * 4;  // of up to an f32 a piece
  static constexpr int kBytes = 2 * (kNumberBytes + kScaleBytes);
  static_assert(kNumberBytes % 16 == 0 && kScaleBytes % 16 == 0);

  std::byte* at;

  TM_DEVICE std::byte* Numbers(int half) const { return at + half * kNumberBytes; }
  TM_DEVICE std::byte* Scales(int half) const { return at + 2 * kNumberBytes + half * kScaleBytes; }
};

inline constexpr int kRowLanes = 8;  // neighbours that copy a row together
inline constexpr int kRowsAtOnce = kAttentionThreads / kRowLanes;
inline constexpr int kRowsOfThread = kKeyTile / kRowsAtOnce;

// A thread's rows of a tile.
struct CodedRowPlaces {
  KeyPlace row[kRowsOfThread];
};

TM_DEVICE CodedRowPlaces FindCodedRows(const KeyRun& keys, const PageDivisor& divisor, int tile) {
  CodedRowPlaces out;
  TM_UNROLL
  for (int i = 0; i < kRowsOfThread; ++i)
    out.row[i] = FindKey<kRowLanes>(keys, divisor, tile + ThreadX() / kRowLanes + i * kRowsAtOnce);
  return out;
}

template <typename Shape>
TM_DEVICE void CopyCodedNumbers(const DevicePages& pages, const CodedRows& rows, const CodedRowPlaces& places,
                                int kv_head, const CodedTile<Shape>& coded) {
  static_assert(Shape::kHeadDim <= kRowLanes * 16, "a lane copies 16 bytes of a row");
  const int from = ThreadX() % kRowLanes * 16;
  if (from >= rows.number_bytes) return;
  const int to = ThreadX() / kRowLanes * rows.number_bytes + from, step = kRowsAtOnce * rows.number_bytes;
  TM_UNROLL
  for (int i = 0; i < kRowsOfThread; ++i) {
    const auto& [at, live] = places.row[i];
    const std::byte* const key = pages.Head(kv_head) + pages.Offset(at.page, at.offset) + from;
    CopyAsync16(coded.Numbers(0) + to + i * step, key, live ? 16 : 0);
    CopyAsync16(coded.Numbers(1) + to + i * step, key + pages.value_offset, live ? 16 : 0);
  }
}

template <typename Shape>
TM_DEVICE void CopyCodedScales(const KvScaleView& scale, const CodedRows& rows, const CodedRowPlaces& places,
                               int kv_head, const CodedTile<Shape>& coded) {
  TM_ROLLED
  for (int from = ThreadX() % kRowLanes * 4; from < rows.scale_bytes; from += kRowLanes * 4) {
    const int to = ThreadX() / kRowLanes * rows.scale_stride + from, step = kRowsAtOnce * rows.scale_stride;
    TM_UNROLL
    for (int i = 0; i < kRowsOfThread; ++i) {
      const auto& [at, live] = places.row[i];
      const std::byte* const key = scale.Key(at.page, kv_head, at.offset) + from;
      CopyAsync4(coded.Scales(0) + to + i * step, key, live ? 4 : 0);
      CopyAsync4(coded.Scales(1) + to + i * step, key + scale.strides.kv, live ? 4 : 0);
    }
  }
}

// ---- rows that lie at multiples of 2 bytes alone, read before this returns: a thread has one of a half

// Of a row of `bytes` at `from`, to where words are; zeros where it is not live.
TM_DEVICE void PutCodedRow(std::byte* to, const std::byte* from, int bytes, bool live) {
  TM_ROLLED
  for (int at = 0; at < bytes; at += 4) {
    const auto* const halves = reinterpret_cast<const uint16_t*>(from + at);
    uint32_t word = live ? LoadGlobal(halves) : 0;
    if (live && at + 2 < bytes) word |= uint32_t{LoadGlobal(halves + 1)} << 16;
    StoreShared(reinterpret_cast<uint32_t*>(to + at), word);
  }
}

template <typename Shape>
TM_DEVICE void PutCodedRows(const AttentionRunParams& run, const CodedRows& rows, const KeyRun& keys,
                            int kv_head, int tile, const CodedTile<Shape>& coded) {
  static_assert(kAttentionThreads == 2 * kKeyTile);
  const int half = ThreadX() / kKeyTile, row = ThreadX() % kKeyTile;
  const auto [at, live] = FindKey<1>(keys, run.pages.divisor, tile + row);
  if (!rows.numbers_in_pieces) {
    const std::byte* const key = run.pages.Head(kv_head) + run.pages.Offset(at.page, at.offset);
    PutCodedRow(coded.Numbers(half) + row * rows.number_bytes, key + half * run.pages.value_offset,
                rows.number_bytes, live);
  }
  if (!rows.scales_in_words) {
    const std::byte* const key = run.kv.scale.Key(at.page, kv_head, at.offset);
    PutCodedRow(coded.Scales(half) + row * rows.scale_stride, key + half * run.kv.scale.strides.kv,
                rows.scale_bytes, live);
  }
}

// The rows at positions [tile, tile + 64), of which the run has some; zero where it has none.
template <typename Shape>
TM_DEVICE void CopyCoded(const AttentionRunParams& run, const CodedRows& rows, const KeyRun& keys,
                         int kv_head, int tile, const CodedTile<Shape>& coded) {
  const CodedRowPlaces places = FindCodedRows(keys, run.pages.divisor, tile);
  if (rows.numbers_in_pieces) CopyCodedNumbers(run.pages, rows, places, kv_head, coded);
  if (rows.scales_in_words) CopyCodedScales(run.kv.scale, rows, places, kv_head, coded);
  if (!rows.numbers_in_pieces || !rows.scales_in_words) PutCodedRows(run, rows, keys, kv_head, tile, coded);
}

// ---- decoding

template <DType kType>
TM_DEVICE Vector8 LoadCodedPiece(const std::byte* numbers, int piece) {
  if constexpr (kType != DType::kInt4) return LoadShared8(numbers + piece * 8);
  Vector8 out = {};
  out.word[0] = LoadShared(reinterpret_cast<const uint32_t*>(numbers) + piece);
  return out;
}

// Scale number `group` of a row.
TM_DEVICE float LoadCodedScale(const Format& element, const std::byte* row, int group) {
  const int at = group * element.companion_bytes;
  const uint32_t word = LoadShared(reinterpret_cast<const uint32_t*>(row) + at / 4);
  if (element.scale == DType::kF32) return FloatOf(word);
  return ToFloat(F16{static_cast<uint16_t>(word >> at % 4 * 8)});
}

// Where a piece of a tile that is decoded comes from, and where it goes to: number i of the thread's.
struct CodedPlace {
  int row, chunk, to;
};
template <typename Shape>
TM_DEVICE CodedPlace CodedPlaceOf(int i) {
  if constexpr (kAttentionThreads % Shape::kChunks == 0) {  // they stand below each other
    constexpr int kStep = kAttentionThreads / Shape::kChunks;
    static_assert(Shape::Swizzle(kStep + 7, 1) == Shape::Swizzle(7, 1) + kStep * Shape::kRowBytes);
    const int row = ThreadX() / Shape::kChunks, chunk = ThreadX() % Shape::kChunks;
    return {row + i * kStep, chunk, Shape::Swizzle(row, chunk) + i * kStep * Shape::kRowBytes};
  }
  const int piece = i * kAttentionThreads + ThreadX();
  const int row = piece / Shape::kChunks, chunk = piece % Shape::kChunks;
  return {row, chunk, Shape::Swizzle(row, chunk)};
}

// To where the tiles of keys and of values have them, which stand side by side: some pieces are loaded
// together before the first of them is stored. `head_scale`: of fp8, of keys and of values.
template <DType kType, typename Shape>
TM_DEVICE void DecodeCodedOf(const Format& element, const CodedRows& rows, const CodedTile<Shape>& coded,
                             const float (&head_scale)[2], std::byte* tiles) {
  constexpr int kPieces = kKeyTile * Shape::kChunks / kAttentionThreads;  // of a thread, and of either tile
  // Of the widest heads, whose sums take most registers, fewer.
  constexpr int kTogether = Shape::kHeadDim > 96 ? 2 : kPieces % 4 == 0 ? 4 : kPieces % 3 == 0 ? 3 : 2;
  static_assert(kPieces % kTogether == 0);
  TM_ROLLED
  for (int turn = 0; turn < 2 * kPieces / kTogether; ++turn) {
    const int half = turn * kTogether / kPieces, first = turn * kTogether % kPieces;
    Vector8 piece[kTogether];
    float scale[kTogether];
    TM_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      piece[i] = LoadCodedPiece<kType>(coded.Numbers(half), (first + i) * kAttentionThreads + ThreadX());
      scale[i] = half == 0 ? head_scale[0] : head_scale[1];
      if constexpr (kType != DType::kFp8E4M3) {
        const CodedPlace place = CodedPlaceOf<Shape>(first + i);
        scale[i] = LoadCodedScale(element, coded.Scales(half) + place.row * rows.scale_stride,
                                  place.chunk * kKvPiece >> element.block_log2);
      }
    }
    std::byte* const tile = tiles + half * Shape::kKeyBytes;
    TM_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      StoreShared16(tile + CodedPlaceOf<Shape>(first + i).to, KvPieceAsBf16<kType>(piece[i], scale[i]));
    }
  }
}

template <typename Shape>
TM_DEVICE void DecodeCoded(const Format& element, const CodedRows& rows, const CodedTile<Shape>& coded,
                           const float (&head_scale)[2], std::byte* tiles) {
  if (element.dtype == DType::kInt8) {
    DecodeCodedOf<DType::kInt8>(element, rows, coded, head_scale, tiles);
  } else if (element.dtype == DType::kInt4) {
    DecodeCodedOf<DType::kInt4>(element, rows, coded, head_scale, tiles);
  } else {
    DecodeCodedOf<DType::kFp8E4M3>(element, rows, coded, head_scale, tiles);
  }
}

}  // namespace tramontane::cuda
