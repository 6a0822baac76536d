// Attention kernels of one variant. Included by each variant_<name>.cc, like simd.h.
//
// Every row takes, block by block of 64 keys:
//
//   scores [rows, 64]    = query [rows, head_dim] x keys [head_dim, 64]       lanes are keys
//   weights              = exp(scores - highest), after the running softmax's update
//   weighted [rows, dim] = weighted * carry + weights [rows, 64] x values     lanes are dimensions
//
// Each score and each weighted value is one chain of fused multiply-adds over head_dim or over the keys in
// ascending order, so neither the rows beside it nor the vector width has a part in it. A key that a row does
// not see has weight exactly zero there, and zero times a value changes no sum.
//
// Many rows (prefill): a block of keys is widened to f32 and transposed once, a block of values widened once;
// then every row of the tile is served from the cache. Bound by multiply-adds. As pages lie scattered, no
// hardware prefetcher runs ahead of a block, so packing one half of a block asks for the half that is packed
// next. Few rows (a decode step's tile is the whole group of a kv head) read the KV once and are bound by
// memory: attention_few_impl.h. Numbers of quantised pages are products with their scales, rounded once,
// either way: attention_quantized_impl.h.
#pragma once

#include "kernels/cpu/attention_few_impl.h"
#include "kernels/cpu/simd.h"

namespace tramontane {
namespace {

// Accumulators of a tile product, with the operands beside them, fill the register file.
constexpr int kProductRows = kWidth == 4 ? 4 : 6;
constexpr int kProductVectors = kWidth == 16 ? 4 : 2;

constexpr float kMinusInfinity = -__builtin_inff();

// A block of keys as the rows of a tile see it: positions [begin, begin + kAttentionBlockKeys).
struct KeyBlock {
  int64_t begin = 0;
  int32_t first = 0;  // keys [first, end) of the block are seen by some row; no other is read
  int32_t end = 0;
  const std::byte* keys[kAttentionBlockKeys];  // outside [first, end) copies of the nearest inside
  // Of keys quantised in groups, likewise; null: they have none.
  const std::byte* scales[kAttentionBlockKeys];

  // From key k on, `kv` being their layer.
  QuantizedRows Keys(int32_t k) const { return {.numbers = keys + k, .scales = scales + k}; }
  QuantizedRows Values(const KvLayerView& kv, int32_t k) const {
    return {.numbers = keys + k,
            .scales = scales + k,
            .numbers_offset = kv.value_offset,
            .scales_offset = kv.scale.strides.kv};
  }
};

// Rows [begin, end) of a tile.
struct RowRange {
  int32_t begin = 0;
  int32_t end = 0;
};

// Keys [first, end) of a block among those of a range of positions.
struct VisibleKeys {
  int32_t first = 0;
  int32_t end = 0;
};

inline int64_t ClampTo(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

inline VisibleKeys KeysSeen(PositionRange seen, int64_t block_begin) {
  return {static_cast<int32_t>(ClampTo(seen.begin - block_begin, 0, kAttentionBlockKeys)),
          static_cast<int32_t>(ClampTo(seen.end - block_begin, 0, kAttentionBlockKeys))};
}

// Which keys of a block a query's mask shows: bit k is the block's key k.
inline uint64_t KeysShown(const AttentionTile& tile, int64_t query, int64_t block_begin) {
  const AttentionParams& params = *tile.params;
  const int64_t kv_base = params.table.kv_base[tile.sequence];
  const int64_t kv_end = params.table.kv_end[tile.sequence];
  const VisibleKeys listed = KeysSeen({kv_base, kv_end}, block_begin);
  if (listed.first >= listed.end) return 0;
  const int64_t bit = query * (kv_end - kv_base) + block_begin + listed.first - kv_base;
  const uint8_t* from = params.mask.bits + params.mask.indptr[tile.sequence] + bit / 8;
  const int shift = static_cast<int>(bit % 8), count = listed.end - listed.first;
  const int bytes = (shift + count + 7) / 8;  // up to 9
  uint64_t shown = 0;
  __builtin_memcpy(&shown, from, static_cast<size_t>(bytes < 8 ? bytes : 8));
  shown >>= shift;
  if (bytes > 8) shown |= uint64_t{from[8]} << (64 - shift);
  if (count < 64) shown &= (uint64_t{1} << count) - 1;
  return shown << listed.first;
}
static_assert(kAttentionBlockKeys == 64);

// Of a block, what the masks of a tile's rows show: the keys from the first to the last that some row sees,
// and the rows from the first to the last that see one.
struct ShownBlock {
  VisibleKeys keys;
  RowRange rows;
};

inline ShownBlock FindShown(const AttentionTile& tile, int64_t block_begin) {
  const int64_t group = tile.group();
  uint64_t any = 0;
  ShownBlock found;
  for (int64_t query = tile.row_begin / group; query * group < tile.row_end; ++query) {
    const uint64_t shown = KeysShown(tile, query, block_begin);
    if (shown == 0) continue;
    if (any == 0)
      found.rows.begin = static_cast<int32_t>(ClampTo(query * group - tile.row_begin, 0, tile.rows()));
    found.rows.end = static_cast<int32_t>(ClampTo((query + 1) * group - tile.row_begin, 0, tile.rows()));
    any |= shown;
  }
  if (any != 0) found.keys = {__builtin_ctzll(any), 64 - __builtin_clzll(any)};
  return found;
}

inline void FindBlock(const AttentionTile& tile, int64_t block_begin, KeyBlock* found) {
  const AttentionParams& params = *tile.params;
  const KvFormat& format = params.kv.format;
  KeyBlock& block = *found;
  block.begin = block_begin;
  const VisibleKeys seen = tile.has_mask() ? FindShown(tile, block_begin).keys
                                           : KeysSeen({tile.key_begin, tile.key_end}, block_begin);
  block.first = seen.first;
  block.end = seen.end;
  if (block.first >= block.end) return;

  const PagesOfSequence pages =
      tile.over_sinks ? SinkPagesOf(params.table, tile.sequence) : PagesOf(params.table, tile.sequence);
  int64_t at = PageOf(block_begin + block.first, 0, format.page_size);
  int32_t offset = OffsetInPage(block_begin + block.first, format.page_size);
  for (int32_t k = block.first; k < block.end; ++at, offset = 0) {
    const int32_t page = pages[at];
    const std::byte* key = params.kv.Key(page, tile.kv_head, offset);
    const std::byte* scale = params.kv.scale.Key(page, tile.kv_head, offset);
    for (; k < block.end && offset < format.page_size; ++k, ++offset) {
      block.keys[k] = key;
      block.scales[k] = scale;
      key += params.kv.token_bytes;
      scale += params.kv.scale.strides.token;
    }
  }
  auto copy = [&block](int32_t from, int32_t to) {
    block.keys[to] = block.keys[from];
    block.scales[to] = block.scales[from];
  };
  for (int32_t k = 0; k < block.first; ++k) copy(block.first, k);
  for (int32_t k = block.end; k < kAttentionBlockKeys; ++k) copy(block.end - 1, k);
}

// The rows of the tile that see a key of the block: positions ascend, so they are neighbours. Where more than
// positions decides, all rows that may.
inline RowRange RowsSeeing(const AttentionTile& tile, int64_t block_begin) {
  if (tile.has_mask()) return FindShown(tile, block_begin).rows;
  if (!tile.plain() || tile.sequences != nullptr) {
    const bool meets = block_begin < tile.key_end && block_begin + kAttentionBlockKeys > tile.key_begin;
    return {0, meets ? tile.rows() : 0};
  }
  const int32_t group = tile.group();
  const int64_t first_query = tile.row_begin / group;
  const int64_t position_of_query_zero = tile.Position(0);
  int64_t begin = block_begin - position_of_query_zero;  // the first query at or after the block's first key
  begin = begin < first_query ? first_query : begin;
  int64_t end = (tile.row_end + group - 1) / group;
  if (tile.params->window > 0) {
    const int64_t past =
        FirstBlind(block_begin + kAttentionBlockKeys - 1, tile.params->window) - position_of_query_zero;
    end = end < past ? end : past;
  }
  const int64_t rows = tile.rows();
  const int64_t row_begin = ClampTo(begin * group - tile.row_begin, 0, rows);
  const int64_t row_end = ClampTo(end * group - tile.row_begin, row_begin, rows);
  return {static_cast<int32_t>(row_begin), static_cast<int32_t>(row_end)};
}

// Columns of keys that are not in [first, end) hold copies of others; the scores there are never used. Asks
// the memory for the block's values.
template <typename Elements>
void PackKeys(const KeyBlock& block, const AttentionParams& params, const AttentionScratch& scratch) {
  const int32_t head_dim = params.kv.format.head_dim;
  const int64_t value_offset = params.kv.value_offset;
  float* const keys = scratch.keys;
  for (int32_t k = block.first / kWidth * kWidth; k < block.end; k += kWidth) {
    const std::byte* const* from = block.keys + k;
    Vf rows[kWidth];
    int32_t d = 0;
    for (; d + kWidth <= head_dim; d += kWidth) {
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) rows[i] = Elements::At(from[i], d);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) __builtin_prefetch(from[i] + value_offset + Elements::Bytes(d));
      Transpose(rows);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) Store(keys + (d + i) * kAttentionBlockKeys + k, rows[i]);
    }
    if (d == head_dim) continue;
    for (int i = 0; i < kWidth; ++i) rows[i] = Elements::FirstAt(from[i], d, head_dim - d);
    Transpose(rows);
    for (int i = 0; d + i < head_dim; ++i) Store(keys + (d + i) * kAttentionBlockKeys + k, rows[i]);
  }
}

template <typename Numbers>
  requires kIsQuantized<Numbers>
void PackKeys(const KeyBlock& block, const AttentionParams& params, const AttentionScratch& scratch) {
  const int32_t head_dim = params.kv.format.head_dim;
  const int64_t stride = PaddedHeadDim(head_dim);
  for (int32_t k = block.first / kWidth * kWidth; k < block.end; k += kWidth) {
    DecodeRows<Numbers>(params.kv.format.element, block.Keys(k), 0, kWidth, block.Values(params.kv, k),
                        head_dim, scratch.decoded, stride);
    Vf rows[kWidth];
    for (int32_t d = 0; d < head_dim; d += kWidth) {
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) rows[i] = Load(scratch.decoded + i * stride + d);
      Transpose(rows);
      for (int i = 0; i < kWidth && d + i < head_dim; ++i) {
        Store(scratch.keys + (d + i) * kAttentionBlockKeys + k, rows[i]);
      }
    }
  }
}

// Asks the memory for the next block's keys.
template <typename Elements>
void PackValues(const KeyBlock& block, const KeyBlock& next, const AttentionParams& params,
                const AttentionScratch& scratch) {
  const int32_t value_dim = params.kv.format.ValueDim();
  const int64_t value_offset = params.kv.value_offset;
  float* const values = scratch.values;
  const int64_t stride = PaddedHeadDim(value_dim);
  for (int32_t k = block.first; k < block.end; ++k) {
    const std::byte* from = block.keys[k] + value_offset;
    const std::byte* ahead = next.keys[k];
    float* to = values + k * stride;
    int32_t d = 0;
    for (; d + kWidth <= value_dim; d += kWidth) {
      Store(to + d, Elements::At(from, d));
      __builtin_prefetch(ahead + Elements::Bytes(d));
    }
    if (d == value_dim) continue;
    Store(to + d, Elements::FirstAt(from, d, value_dim - d));
    for (d += kWidth; d < stride; d += kWidth) Store(to + d, Vf{});
  }
}

template <typename Numbers>
  requires kIsQuantized<Numbers>
void PackValues(const KeyBlock& block, const KeyBlock& next, const AttentionParams& params,
                const AttentionScratch& scratch) {
  const int32_t value_dim = params.kv.format.ValueDim();
  const int64_t stride = PaddedHeadDim(value_dim);
  DecodeRows<Numbers>(params.kv.format.element, block.Values(params.kv, 0), block.first, block.end,
                      next.Keys(0), value_dim, scratch.values + block.first * stride, stride);
}

// out [rows, columns] = out * carry + a [rows, depth] x b [depth, columns]. Row strides in floats; columns
// are whole vectors.
struct Product {
  const float* const* a = nullptr;  // [rows] where each row's depth elements begin
  int32_t depth = 0;
  const float* b = nullptr;
  int64_t b_stride = 0;
  const float* carry = nullptr;  // [rows]; null: as zeros
  float* out = nullptr;
  int64_t out_stride = 0;
};

template <int kRows, int kVectors>
void MultiplyTile(const Product& p, int32_t row, int32_t column) {
  Vf sums[kRows][kVectors];
  const float* a[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    a[r] = p.a[row + r];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = p.carry == nullptr
                       ? Vf{}
                       : Load(p.out + (row + r) * p.out_stride + column + v * kWidth) * p.carry[row + r];
    }
  }
  const float* b = p.b + column;
  for (int32_t k = 0; k < p.depth; ++k, b += p.b_stride) {
    Vf shared[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) shared[v] = Load(b + v * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vf own = Splat(a[r][k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = Fma(own, shared[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Store(p.out + (row + r) * p.out_stride + column + v * kWidth, sums[r][v]);
    }
  }
}

template <int kRows>
void MultiplyRows(const Product& p, int32_t row, int32_t columns) {
  int32_t column = 0;
  for (; column + kProductVectors * kWidth <= columns; column += kProductVectors * kWidth) {
    MultiplyTile<kRows, kProductVectors>(p, row, column);
  }
  for (; column < columns; column += kWidth) MultiplyTile<kRows, 1>(p, row, column);
}

void Multiply(const Product& p, int32_t rows, int32_t columns) {
  int32_t row = 0;
  for (; row + kProductRows <= rows; row += kProductRows) MultiplyRows<kProductRows>(p, row, columns);
  switch (rows - row) {
    case 5:
      return MultiplyRows<5>(p, row, columns);
    case 4:
      return MultiplyRows<4>(p, row, columns);
    case 3:
      return MultiplyRows<3>(p, row, columns);
    case 2:
      return MultiplyRows<2>(p, row, columns);
    case 1:
      return MultiplyRows<1>(p, row, columns);
    default:
      return;
  }
}

// e^x for x <= 0 within 2 units in the last place: exactly 1 at 0, exactly 0 below -87 (no subnormals), NaN
// for NaN. Like Exp, which has to do with more.
inline Vf SoftmaxExp(Vf x) {
  constexpr float kLowest = -87.0f;
  const ExpParts parts = SplitExp(x < Splat(kLowest) ? Splat(kLowest) : x);
  // 2^n, n >= -126: normal.
  const Vf scale = BitsToFloat((FloatToBits(parts.exponent) << 23) + FloatToBits(Splat(1.0f)));
  return x < Splat(kLowest) ? Vf{} : parts.power * scale;
}
inline float SoftmaxExp(float x) { return SoftmaxExp(Splat(x))[0]; }

// Turns one row's scores into weights against the new highest score. Returns the factor that brings what the
// row gathered before to that score.
inline float UpdateSoftmax(float* scores, float scale, float* highest, float* sum) {
  constexpr int kVectors = kAttentionBlockKeys / kWidth;
  Vf weights[kVectors];
  Vf block_highest = Splat(kMinusInfinity);
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    weights[v] = Load(scores + v * kWidth) * scale;
    block_highest = Max(weights[v], block_highest);
  }
  const float before = *highest;
  const float block_top = MaxLanes(block_highest);
  const float now = block_top > before ? block_top : before;

  Vf block_sum = {};
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    weights[v] = SoftmaxExp(weights[v] - now);
    Store(scores + v * kWidth, weights[v]);
    block_sum += weights[v];
  }
  const float carry = now == before ? 1.0f : SoftmaxExp(before - now);
  *highest = now;
  *sum = *sum * carry + SumLanes(block_sum);
  return carry;
}

// The rows of a tile at work.
struct TileRows {
  PositionRange seen[kAttentionTileRows];
  const float* queries[kAttentionTileRows];
  float carry[kAttentionTileRows];
};

// Hides from a row the keys of the block that its mask hides. Whether it sees any at all.
inline bool HideByMask(const AttentionTile& tile, int64_t query, const KeyBlock& block, float* scores) {
  const uint64_t shown = KeysShown(tile, query, block.begin);
  for (int32_t k = 0; k < kAttentionBlockKeys; ++k) {
    if ((shown >> k & 1) == 0) scores[k] = kMinusInfinity;
  }
  return shown != 0;
}

// Hides from each row the keys it does not see, then updates its softmax. Where a row may see no key of the
// block (not kPlain) it keeps its state then, and has weights of zero.
template <bool kPlain>
void SoftmaxRowsOf(const AttentionTile& tile, const TileRows& tile_rows, const KeyBlock& block, RowRange rows,
                   float* scores, const AttentionState& state, float* carry) {
  for (int32_t r = rows.begin; r < rows.end; ++r) {
    float* row = scores + int64_t{r} * kAttentionBlockKeys;
    const VisibleKeys seen = KeysSeen(tile_rows.seen[r], block.begin);
    for (int32_t k = 0; k < seen.first; ++k) row[k] = kMinusInfinity;
    for (int32_t k = seen.end; k < kAttentionBlockKeys; ++k) row[k] = kMinusInfinity;
    if constexpr (!kPlain) {
      bool sees_any = seen.first < seen.end;
      if (sees_any && tile.has_mask()) {
        sees_any = HideByMask(tile, (tile.row_begin + r) / tile.group(), block, row);
      }
      if (!sees_any) {
        __builtin_memset(row, 0, kAttentionBlockKeys * sizeof(float));
        carry[r] = 1.0f;
        continue;
      }
    }
    carry[r] = UpdateSoftmax(row, tile.params->scale, &state.highest[r], &state.sum[r]);
  }
}

inline void SoftmaxRows(const AttentionTile& tile, const TileRows& tile_rows, const KeyBlock& block,
                        RowRange rows, float* scores, const AttentionState& state, float* carry) {
  if (tile.plain()) return SoftmaxRowsOf<true>(tile, tile_rows, block, rows, scores, state, carry);
  SoftmaxRowsOf<false>(tile, tile_rows, block, rows, scores, state, carry);
}

// Scores of all rows, then weighted sums of all rows, over copies of the block's keys and values.
template <typename Elements>
void AttendBlock(const AttentionTile& tile, const KeyBlock& block, const KeyBlock& next, RowRange range,
                 const AttentionScratch& scratch, const AttentionState& state, TileRows* rows) {
  const AttentionParams& params = *tile.params;
  const int32_t head_dim = params.kv.format.head_dim;
  const int32_t value_dim = params.kv.format.ValueDim();
  const int64_t padded_dim = PaddedHeadDim(value_dim);
  PackKeys<Elements>(block, params, scratch);
  float* scores = scratch.scores + int64_t{range.begin} * kAttentionBlockKeys;
  const int32_t score_columns = (block.end + kWidth - 1) / kWidth * kWidth;
  Multiply({.a = rows->queries + range.begin,
            .depth = head_dim,
            .b = scratch.keys,
            .b_stride = kAttentionBlockKeys,
            .carry = nullptr,
            .out = scores,
            .out_stride = kAttentionBlockKeys},
           range.end - range.begin, score_columns);
  SoftmaxRows(tile, *rows, block, range, scratch.scores, state, rows->carry);

  PackValues<Elements>(block, next, params, scratch);
  const float* weights[kAttentionTileRows];
  for (int32_t r = range.begin; r < range.end; ++r) {
    weights[r] = scratch.scores + int64_t{r} * kAttentionBlockKeys + block.first;
  }
  Multiply({.a = weights + range.begin,
            .depth = block.end - block.first,
            .b = scratch.values + block.first * padded_dim,
            .b_stride = padded_dim,
            .carry = rows->carry + range.begin,
            .out = state.weighted + range.begin * padded_dim,
            .out_stride = padded_dim},
           range.end - range.begin, static_cast<int32_t>(padded_dim));
}

// The same for few rows, without copies; scratch.values holds their queries. Asks the memory for what comes
// next, up to the keys of the block `next`.
template <typename Elements>
void AttendBlockFew(const AttentionTile& tile, const KeyBlock& block, const KeyBlock& next, RowRange range,
                    const AttentionScratch& scratch, const AttentionState& state, TileRows* rows) {
  const AttentionParams& params = *tile.params;
  const Format& element = params.kv.format.element;
  const int32_t head_dim = params.kv.format.head_dim;
  const int32_t value_dim = params.kv.format.ValueDim();
  const int64_t padded_dim = PaddedHeadDim(value_dim);
  const int64_t value_offset = params.kv.value_offset, value_scale_offset = params.kv.scale.strides.kv;
  const int32_t count = range.end - range.begin;
  int group_log2 = 0;
  int32_t groups = 0;
  if constexpr (kIsQuantized<Elements>) {
    group_log2 = GroupLog2<Elements>(element);
    groups = ((head_dim - 1) >> group_log2) + 1;
  }

  // The strip to ask for at strip s of the keys: their values. At a strip of the values: the next block's
  // keys.
  auto values_of = [&](int s) -> StripAhead { return {block.keys + s * kStripKeys, value_offset}; };
  auto next_keys_of = [&](int s) -> StripAhead { return {next.keys + s * kStripKeys, 0}; };

  const int32_t first_strip = block.first / kStripKeys;
  const int32_t end_strip = (block.end + kStripKeys - 1) / kStripKeys;
  Strips strips = {.keys = scratch.keys,
                   .floats = int64_t{head_dim} / Elements::kPerUnit * kStripKeys,
                   .scales = scratch.decoded,
                   .scale_floats = int64_t{groups} * kStripKeys,
                   .group_log2 = group_log2};
  auto put_strip = [&](int s, int place) {
    const std::byte* const* keys = block.keys + s * kStripKeys;
    if constexpr (kIsQuantized<Elements>) {
      const std::byte* const* scales = block.scales + s * kStripKeys;
      if (Elements::kInGroups) AskForScales(scales, value_scale_offset, groups);
      PutKeyScales<Elements>(scales, groups, kStripKeys, scratch.decoded + place * strips.scale_floats);
    }
    TransposeStrip<Elements>(keys, head_dim, values_of(s), scratch.keys + place * strips.floats);
  };
  for (int32_t s = first_strip; s < end_strip; ++s) {
    float* scores = scratch.scores + int64_t{range.begin} * kAttentionBlockKeys + s * kStripKeys;
    const float* queries = scratch.values + range.begin;
    put_strip(s, 0);
    if (kWidth < 16 && count <= 2 && s + 1 < end_strip) {  // sums of few rows would wait for each other
      put_strip(s + 1, 1);
      const StripAhead ahead[2] = {values_of(s), values_of(s + 1)};
      count == 1 ? ScoreStrips<Elements, 1, 2>(strips, queries, head_dim, ahead, scores)
                 : ScoreStrips<Elements, 2, 2>(strips, queries, head_dim, ahead, scores);
      ++s;
      continue;
    }
    ForFewRows(count, [&]<int kRows>(int32_t row) {
      const StripAhead ahead[2] = {row == 0 ? values_of(s) : StripAhead{}};
      ScoreStrips<Elements, kRows, 1>(strips, queries + row, head_dim, ahead,
                                      scores + int64_t{row} * kAttentionBlockKeys);
    });
  }
  SoftmaxRows(tile, *rows, block, range, scratch.scores, state, rows->carry);

  for (int32_t s = first_strip; s < end_strip; ++s) {
    const int32_t k = s * kStripKeys;
    const auto begin = static_cast<int32_t>(ClampTo(block.first - k, 0, kStripKeys));
    const auto end = static_cast<int32_t>(ClampTo(block.end - k, 0, kStripKeys));
    if constexpr (kIsQuantized<Elements>) {
      if (Elements::kInGroups) AskForScales(next.scales + k, 0, groups);
      PutValueScales<Elements>(block.scales + k, value_scale_offset, groups, begin, end, scratch.decoded);
    }
    ForFewRows(count, [&]<int kRows>(int32_t row) {
      const int64_t r = range.begin + row;
      WeighRows<Elements, kRows>({.keys = block.keys + k,
                                  .value_offset = value_offset,
                                  .begin = begin,
                                  .end = end,
                                  .weights = scratch.scores + r * kAttentionBlockKeys + k,
                                  .carry = s == first_strip ? rows->carry + r : nullptr,
                                  .weighted = state.weighted + r * padded_dim,
                                  .stride = padded_dim,
                                  .ahead = row == 0 ? next_keys_of(s) : StripAhead{},
                                  .scales = scratch.decoded,
                                  .groups = groups,
                                  .group_log2 = group_log2},
                                 value_dim);
    });
  }
}

// Asks for one line of each 4 KiB of a block's keys and values.
inline void AskForAddresses(const KeyBlock& block, const KvLayerView& kv) {
  constexpr int64_t kAddressed = 4096;  // bytes whose address is looked up at once, at least
  const auto step = static_cast<int32_t>(ClampTo(kAddressed / kv.token_bytes, 1, kv.format.page_size));
  for (int32_t k = block.first; k < block.end; k += step) {
    AskFor(block.keys[k]);
    AskFor(block.keys[k] + kv.value_offset);
  }
}

// Of a segment, from the first block that some row of a tile sees to the last such key.
inline PositionRange BlocksOf(const AttentionTile& tile, int64_t segment) {
  const int64_t segment_begin = segment * kAttentionSegmentKeys;
  return {ClampTo(tile.key_begin / kAttentionBlockKeys * kAttentionBlockKeys, segment_begin,
                  segment_begin + kAttentionSegmentKeys),
          ClampTo(tile.key_end, segment_begin, segment_begin + kAttentionSegmentKeys)};
}

template <typename Elements>
void AttendSegmentFew(const AttentionTile& tile, int64_t segment, const AttentionNext& next,
                      const AttentionScratch& scratch, const AttentionState& state, TileRows* rows) {
  const PositionRange range = BlocksOf(tile, segment);
  if (range.begin >= range.end) return;
  PutQueries(rows->queries, tile.rows(), tile.params->kv.format.head_dim, scratch.values);
  KeyBlock blocks[2];
  KeyBlock *block = &blocks[0], *after = &blocks[1];
  FindBlock(tile, range.begin, block);
  for (int64_t begin = range.begin; begin < range.end; begin += kAttentionBlockKeys) {
    after->end = 0;
    if (begin + kAttentionBlockKeys < range.end) {
      FindBlock(tile, begin + kAttentionBlockKeys, after);
    } else if (next.tile != nullptr) {
      FindBlock(*next.tile, BlocksOf(*next.tile, next.segment).begin, after);
    }
    const bool is_known = after->first < after->end;
    if (is_known) AskForAddresses(*after, tile.params->kv);
    AttendBlockFew<Elements>(tile, *block, is_known ? *after : *block, RowsSeeing(tile, begin), scratch,
                             state, rows);
    std::swap(block, after);
  }
  if (ReadsPairs<Elements>(tile.params->kv.format.element.block_log2)) {
    const int32_t value_dim = tile.params->kv.format.ValueDim();
    for (int32_t r = 0; r < tile.rows(); ++r) {
      PutInOrder<Elements>(state.weighted + r * PaddedHeadDim(value_dim), value_dim);
    }
  }
}

template <typename Elements>
void AttendSegmentMany(const AttentionTile& tile, int64_t segment, const AttentionScratch& scratch,
                       const AttentionState& state, TileRows* rows) {
  const int64_t segment_begin = segment * kAttentionSegmentKeys;
  for (int64_t begin = segment_begin; begin < segment_begin + kAttentionSegmentKeys;
       begin += kAttentionBlockKeys) {
    const RowRange range = RowsSeeing(tile, begin);
    if (range.begin == range.end) continue;
    const int64_t next_begin = begin + kAttentionBlockKeys;
    KeyBlock block, next;
    FindBlock(tile, begin, &block);
    FindBlock(tile, next_begin < tile.key_end ? next_begin : begin, &next);
    const bool is_known = next.first < next.end;
    AttendBlock<Elements>(tile, block, is_known ? next : block, range, scratch, state, rows);
  }
}

template <typename Elements>
void AttendSegmentOf(const AttentionTile& tile, int64_t segment, const AttentionNext& next,
                     const AttentionScratch& scratch, const AttentionState& state) {
  const AttentionParams& params = *tile.params;
  const int32_t group = tile.group();
  const Tensor& queries = tile.over_sinks ? params.sinks.query : params.query;
  TileRows rows;
  for (int32_t r = 0; r < tile.rows(); ++r) {
    const int64_t row = tile.row_begin + r;
    const int64_t head = int64_t{tile.kv_head} * group + row % group;
    rows.queries[r] = static_cast<const float*>(queries.data) + tile.Token(row / group) * queries.row_stride +
                      head * params.kv.format.head_dim;
    rows.seen[r] = tile.Seen(row / group);
    state.highest[r] = kMinusInfinity;
    state.sum[r] = 0.0f;
  }
  const int64_t weighted_floats = tile.rows() * PaddedHeadDim(params.kv.format.ValueDim());
  __builtin_memset(state.weighted, 0, static_cast<size_t>(weighted_floats) * sizeof(float));

  if (tile.rows() <= kAttentionFewRows && HasWholeUnits<Elements>(params.kv.format)) {
    return AttendSegmentFew<Elements>(tile, segment, next, scratch, state, &rows);
  }
  AttendSegmentMany<Elements>(tile, segment, scratch, state, &rows);
}

void AttendSegment(const AttentionTile& tile, int64_t segment, const AttentionNext& next,
                   const AttentionScratch& scratch, const AttentionState& state) {
  switch (tile.params->kv.format.element.dtype) {
    case DType::kF32:
      return AttendSegmentOf<F32Elements>(tile, segment, next, scratch, state);
    case DType::kBf16:
      return AttendSegmentOf<Bf16Elements>(tile, segment, next, scratch, state);
    case DType::kF16:
      return AttendSegmentOf<F16Elements>(tile, segment, next, scratch, state);
    case DType::kInt8:
      return AttendSegmentOf<Int8Numbers>(tile, segment, next, scratch, state);
    case DType::kInt4:
      return AttendSegmentOf<Int4Numbers>(tile, segment, next, scratch, state);
    case DType::kFp8E4M3:
      return AttendSegmentOf<Fp8Numbers>(tile, segment, next, scratch, state);
    default:
      return;  // refused before a step
  }
}

void MergeStates(const AttentionState& total, const AttentionState& part, int32_t rows, int32_t value_dim) {
  const int64_t padded_dim = PaddedHeadDim(value_dim);
  for (int32_t r = 0; r < rows; ++r) {
    if (part.highest[r] == kMinusInfinity && part.sum[r] == 0.0f) continue;
    const float highest = part.highest[r] > total.highest[r] ? part.highest[r] : total.highest[r];
    const float total_factor = SoftmaxExp(total.highest[r] - highest);
    const float part_factor = SoftmaxExp(part.highest[r] - highest);
    total.highest[r] = highest;
    total.sum[r] = total.sum[r] * total_factor + part.sum[r] * part_factor;
    float* to = total.weighted + r * padded_dim;
    const float* from = part.weighted + r * padded_dim;
    for (int64_t d = 0; d < padded_dim; d += kWidth) {
      Store(to + d, Load(to + d) * total_factor + Load(from + d) * part_factor);
    }
  }
}

// log2 of the sum of e^score, from its state; -inf where no key was seen.
inline float LogSumExp2(float highest, float sum) {
  constexpr float kLog2E = 1.44269504f;
  return sum == 0.0f ? kMinusInfinity : highest * kLog2E + __builtin_log2f(sum);
}

void FinishTile(const AttentionTile& tile, const AttentionState& total) {
  const AttentionParams& params = *tile.params;
  const int32_t value_dim = params.kv.format.ValueDim();
  const int64_t padded_dim = PaddedHeadDim(value_dim);
  const int32_t group = tile.group();
  for (int32_t r = 0; r < tile.rows(); ++r) {
    const int64_t row = tile.row_begin + r;
    const int64_t token = tile.Token(row / group);
    const int64_t head = int64_t{tile.kv_head} * group + row % group;
    float* out = static_cast<float*>(params.out.data) + token * params.out.row_stride + head * value_dim;
    const float* weighted = total.weighted + r * padded_dim;
    const float sum = total.sum[r] == 0.0f ? 1.0f : total.sum[r];
    // Adding zero turns -0 (a product too small for f32) into the 0 that a masked key after it would have
    // made.
    int32_t d = 0;
    for (; d + kWidth <= value_dim; d += kWidth) Store(out + d, Load(weighted + d) / sum + 0.0f);
    if (d < value_dim) StoreFirst(out + d, Load(weighted + d) / sum + 0.0f, value_dim - d);
    if (params.lse != nullptr) {
      params.lse[token * params.query_heads + head] = LogSumExp2(total.highest[r], total.sum[r]);
    }
  }
}

constexpr AttentionKernels kAttentionKernels = {AttendSegment, MergeStates, FinishTile};

}  // namespace
}  // namespace tramontane
