// The pieces of attention that are compiled once per instruction set; attention.cc tells how they fit
// together. Any thread; each call writes its own scratch, state and rows of out only.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/core/kv_quantize.h"

namespace tramontane {

// Constants of the numerics contract: change one and bits change.
inline constexpr int32_t kAttentionBlockKeys = 64;     // keys scored at once, from absolute multiples
inline constexpr int32_t kAttentionSegmentKeys = 512;  // keys of one softmax state, from absolute multiples
static_assert(kAttentionSegmentKeys % kAttentionBlockKeys == 0);
static_assert(kAttentionOrderKeys % kAttentionSegmentKeys == 0);

// Rows of query that share a pass over the keys. Any value gives the same bits.
inline constexpr int32_t kAttentionTileRows = 128;

// Tiles of at most so many rows read keys and values as they lie in their pages; others make copies for all
// their rows. Both take every sum in the same order: any value gives the same bits.
inline constexpr int32_t kAttentionFewRows = 8;

// Quantised keys that are decoded at once for many rows: a vector of the widest variant.
inline constexpr int32_t kAttentionDecodedKeys = 16;

// Dimensions of keys and values are filled up to whole vectors of the widest variant.
constexpr int64_t PaddedHeadDim(int32_t head_dim) { return (int64_t{head_dim} + 15) / 16 * 16; }

// Positions [begin, end).
struct PositionRange {
  int64_t begin = 0;
  int64_t end = 0;
};

inline bool HasMask(const AttentionParams& params, int32_t sequence) {
  return params.mask.bits != nullptr && params.mask.indptr[sequence] < params.mask.indptr[sequence + 1];
}

// Whether what a sequence's queries see follows from their positions and the window alone, whatever others of
// the batch see. REQUIRES: it has a query.
inline bool IsPlain(const AttentionParams& params, int32_t sequence) {
  if (HasMask(params, sequence)) return false;
  if (params.sinks.len == nullptr) return true;
  const int64_t last = params.qo_indptr[sequence + 1] - 1;
  return params.sinks.len[last] == 0 && params.sinks.left[last] == 0;
}

// Some of the rows of one sequence and kv head. Row r is head r % group of the group that reads this kv head,
// of query r / group of the sequence, where group = query_heads / kv_heads.
//
// Or the rows of several sequences of one query each, over keys in pages that stand in all their tables: then
// query i is that of sequences[i], and every row sees all of [key_begin, key_end).
struct AttentionTile {
  const AttentionParams* params = nullptr;
  int32_t sequence = 0;  // whose table is read
  const int32_t* sequences = nullptr;
  int32_t kv_head = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;  // at most kAttentionTileRows after row_begin

  // Which keys this pass is over: those of the window (or mask), or the sinks.
  bool over_sinks = false;
  // Positions [key_begin, key_end): keys that some row sees.
  int64_t key_begin = 0;
  int64_t key_end = 0;

  int32_t group() const { return params->query_heads / params->kv.format.kv_heads; }
  int32_t rows() const { return static_cast<int32_t>(row_end - row_begin); }
  int64_t Token(int64_t query) const {
    return sequences == nullptr ? params->qo_indptr[sequence] + query : params->qo_indptr[sequences[query]];
  }
  // Absolute position of the sequence's query i. Not of several sequences'.
  int64_t Position(int64_t query) const {
    const int64_t count = params->qo_indptr[sequence + 1] - params->qo_indptr[sequence];
    return params->table.kv_end[sequence] - count + query;
  }
  // Whether what a row sees follows from its position and the window alone: then neighbours see much the
  // same, and every row of RowsSeeing sees a key of the block.
  bool plain() const { return IsPlain(*params, sequence); }
  bool has_mask() const { return HasMask(*params, sequence); }
  // Positions among which the sequence's query i sees keys: all of them unless there is a mask.
  PositionRange Seen(int64_t query) const {
    if (sequences != nullptr) return {key_begin, key_end};
    const int64_t position = Position(query);
    if (has_mask()) {
      const int64_t kv_base = params->table.kv_base[sequence];
      return {kv_base, over_sinks ? kv_base : params->table.kv_end[sequence]};
    }
    if (params->sinks.len == nullptr) return {FirstVisible(position, params->window), position + 1};
    const AttentionSinks& sinks = params->sinks;
    const int64_t token = Token(query);
    if (over_sinks) {
      const int64_t end = sinks.len[token] < position + 1 ? sinks.len[token] : position + 1;
      const int64_t begin =
          sinks.windowed != 0 ? FirstVisible(sinks.query_position[token], params->window) : 0;
      return {begin < end ? begin : end, end};
    }
    const int64_t left = sinks.left[token];
    const int64_t begin = FirstVisible(position, params->window);
    return {begin > left ? begin : left, position + 1};
  }
  // Sets key_begin and key_end from what the rows see.
  void FindKeys() {
    const int64_t first = row_begin / group(), last = (row_end - 1) / group();
    if (plain()) {
      key_begin = Seen(first).begin;
      key_end = Seen(last).end;
      return;
    }
    key_begin = key_end = 0;
    for (int64_t query = first; query <= last; ++query) {
      const PositionRange seen = Seen(query);
      if (seen.begin >= seen.end) continue;
      key_begin = key_begin == key_end || seen.begin < key_begin ? seen.begin : key_begin;
      key_end = seen.end > key_end ? seen.end : key_end;
    }
  }
};

// A softmax in progress for each row: of the keys seen so far, the highest score, the sum of
// exp(score - highest), and the values weighted by it.
struct AttentionState {
  float* highest = nullptr;   // [rows] -inf: no key seen
  float* sum = nullptr;       // [rows]
  float* weighted = nullptr;  // [rows, PaddedHeadDim(value_dim)]

  static constexpr int64_t Floats(int64_t rows, int32_t head_dim) {
    return (rows + 15) / 16 * 16 * 2 + rows * PaddedHeadDim(head_dim);
  }
  static AttentionState At(float* memory, int64_t rows) {
    const int64_t padded_rows = (rows + 15) / 16 * 16;
    return {memory, memory + padded_rows, memory + 2 * padded_rows};
  }
};

// One thread's scratch.
struct AttentionScratch {
  float* keys = nullptr;    // [head_dim, kAttentionBlockKeys] a block of keys, transposed
  float* values = nullptr;  // [kAttentionBlockKeys, PaddedHeadDim]; of few rows their queries
  // [kAttentionDecodedKeys, PaddedHeadDim] of quantised pages: keys in f32; of few rows the scales of a strip
  float* decoded = nullptr;
  float* scores = nullptr;  // [rows, kAttentionBlockKeys]
};

// The segment whose keys a thread reads after those of the call, as far as it is known.
struct AttentionNext {
  const AttentionTile* tile = nullptr;  // null: unknown
  int64_t segment = 0;
};

struct AttentionKernels {
  // state = the softmax over the keys of one segment that the tile's rows see.
  void (*attend_segment)(const AttentionTile& tile, int64_t segment, const AttentionNext& next,
                         const AttentionScratch& scratch, const AttentionState& state);
  // total = the softmax over the keys of total and part, for rows [0, rows). A row without keys in part keeps
  // its total as it is.
  void (*merge)(const AttentionState& total, const AttentionState& part, int32_t rows, int32_t value_dim);
  // Writes the tile's rows of out; zeros for a row that saw no key.
  void (*finish)(const AttentionTile& tile, const AttentionState& total);
};

}  // namespace tramontane
