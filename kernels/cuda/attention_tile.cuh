// What the attention kernels do with a tile of rows and 64 keys in shared memory: scores, a step of the
// softmax, the weighted values, and the end of a block. Device side; every thread of the block calls each.
//
// A block has 4 warps and one tile of rows. Three tiles:
//   128 rows: warp w takes rows 32w..32w+31 and all 64 keys: two fragments of 16 rows, which a fragment of
//             keys or values meets both when it has been read once;
//   64 rows:  warp w takes rows 16w..16w+15 and all 64 keys;
//   16 rows:  every warp takes all rows and 16 of the 64 keys; the warps' softmax states are joined in warp
//             order at the end (JoinWarps).
// A thread has a part of kThreadRows of its warp's rows: two of each fragment, group_lane and group_lane + 8.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/device_pages.cuh"
#include "kernels/cuda/primitives.cuh"

namespace tramontane::cuda {

inline constexpr int kAttentionWarps = 4;
inline constexpr int kAttentionThreads = kAttentionWarps * 32;
inline constexpr float kAttentionLog2E = 1.4426950408889634f;

template <typename T, int kHeadDimensions, int kRows>
struct AttentionTile {
  using Element = T;
  static constexpr int kHeadDim = kHeadDimensions;
  static constexpr int kTileRows = kRows;
  static constexpr int kWarpRows = kTileRows == kWideTileRows ? 32 : 16;
  static constexpr int kFragments = kWarpRows / 16;              // of 16 rows, that a warp has
  static constexpr int kThreadRows = 2 * kFragments;             // of which a thread has a part
  static constexpr int kRowWarps = kTileRows / kWarpRows;        // warps side by side over rows
  static constexpr int kKeyWarps = kAttentionWarps / kRowWarps;  // and over keys
  static constexpr int kWarpKeys = kKeyTile / kKeyWarps;         // keys of a tile that one warp takes
  static constexpr int kKeySteps = kWarpKeys / 16;
  static constexpr int kDimSteps = kHeadDim / 16;
  static constexpr int kChunks = kHeadDim / 8;  // 16-byte pieces of a row
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kQueryBytes = kTileRows * kRowBytes;
  static constexpr int kKeyBytes = kKeyTile * kRowBytes;
  // A row of a warp's state for JoinWarps, in numbers: O, max and sum, and nothing, so that four rows next to
  // each other are in different banks where each has 8 of them.
  static constexpr int kStateStride = kHeadDim + 8;
  static constexpr int kStateBytes = kTileRows * kStateStride * 4;  // of one warp
  static constexpr int kLoadBytes = kQueryBytes + 2 * kAttentionStages * kKeyBytes;
  static constexpr int kJoinBytes = kKeyWarps > 1 ? kKeyWarps* kStateBytes : 0;
  static constexpr int kSharedBytes = kJoinBytes > kLoadBytes ? kJoinBytes : kLoadBytes;
  static_assert(kRowWarps * kKeyWarps == kAttentionWarps && kKeySteps * 16 * kKeyWarps == kKeyTile);
  static_assert(kSharedBytes == AttentionSharedBytes(kHeadDim, kTileRows));

  // Byte offset of a 16-byte piece in a tile. The exclusive or spreads eight neighbouring rows over all
  // banks.
  TM_HOST_DEVICE static constexpr int Swizzle(int row, int chunk) {
    const int twist = kChunks % 8 == 0 ? row & 7 : (row >> 1) & 3;
    return row * kRowBytes + (chunk ^ twist) * 16;
  }
};

// Where a thread stands in its block: its warp's rows and keys, its row and column pair of a fragment.
template <typename Shape>
struct AttentionPlace {
  int lane, row_warp, key_warp;
  int group_lane, pair;

  TM_DEVICE static AttentionPlace OfThread() {
    const int lane = LaneId(), warp = ThreadX() / 32;
    return {lane, warp % Shape::kRowWarps, warp / Shape::kRowWarps, lane / 4, lane % 4};
  }
  TM_DEVICE int warp_key() const { return key_warp * Shape::kWarpKeys; }
  // Row i of the thread's, in the tile.
  TM_DEVICE int row(int i) const { return row_warp * Shape::kWarpRows + group_lane + 8 * i; }
};

// The softmax so far of a thread's rows: their highest score, not scaled yet; the sum of
// 2^((score - highest) * scale); and the values weighted by it, of row i in elements 2i and 2i + 1.
template <typename Shape>
struct AttentionState {
  float out[Shape::kDimSteps * 2][2 * Shape::kThreadRows] = {};
  float max[Shape::kThreadRows];
  float sum[Shape::kThreadRows] = {};

  TM_DEVICE AttentionState() {
    TM_UNROLL
    for (float& highest : max) highest = kMinusInfinity;
  }
};

// The rows that an item has a tile of, and where they stand: those of a sequence, its last tokens; or of
// sharers one each, which see all keys of the item and so have no window and stand behind them.
struct ItemRows {
  int first_token;
  int rows;            // tokens x group
  int first_position;  // of the first token
  int window;          // 0: none
};

TM_DEVICE ItemRows LoadRows(const AttentionRunParams& p, const AttentionItem& item) {
  const int first_token = LoadUniform(p.qo_indptr + item.sequence);
  const int tokens = LoadUniform(p.qo_indptr + item.sequence + MembersOf(item.partial)) - first_token;
  const int kv_end = LoadUniform(p.table.kv_end + item.sequence);
  const bool shared = IsOfSharers(item.partial);
  return {first_token, tokens * p.group, (shared ? item.key_end : kv_end - tokens), shared ? 0 : p.window};
}

// Where the partial results of row r of the item lie, and of a kv head.
template <typename Shape>
TM_DEVICE int64_t SlotOfRow(const AttentionRunParams& p, const AttentionItem& item, int kv_head, int r) {
  int partial = item.partial, row = r - item.row_begin;
  if (IsOfSharers(partial)) {
    const int member = r / p.group;
    row = r - member * p.group;
    partial = LoadTogether<4>(&p.shares[item.sequence + member].partial) + SharedSplitOf(partial);
  }
  return (int64_t{partial} * p.kv.format.kv_heads + kv_head) * Shape::kTileRows + row;
}

// Query rows [row_begin, row_begin + kTileRows) of a sequence of `rows`, zero beyond the last one.
template <typename Shape>
TM_DEVICE void LoadQueries(const void* query, int64_t query_stride, int first_token, int group, int kv_head,
                           int row_begin, int rows, std::byte* tile) {
  for (int piece = ThreadX(); piece < Shape::kTileRows * Shape::kChunks; piece += kAttentionThreads) {
    const int row = piece / Shape::kChunks, chunk = piece % Shape::kChunks;
    const int r = row_begin + row;
    const auto* source = static_cast<const std::byte*>(query);
    if (r < rows) {
      const int64_t element = (first_token + r / group) * query_stride +
                              int64_t{kv_head * group + r % group} * Shape::kHeadDim + chunk * 8;
      source += element * 2;
    }
    CopyAsync16(tile + Shape::Swizzle(row, chunk), source, r < rows ? 16 : 0);
  }
}

// Keys that stand in one list of pages: those at positions [begin, end), in tiles from position `first` on.
struct KeyRun {
  PagesOfSequence pages;
  int first;
  int begin, end;

  TM_DEVICE int tiles() const { return end > first ? (end - first + kKeyTile - 1) / kKeyTile : 0; }
};

// Where the key at a position lies, for kLanes neighbours who ask for the same. Where the run has none
// (not live) it is the place of the nearest that it has, for copies of no bytes.
struct KeyPlace {
  PagePlace at;
  bool live;
};
template <int kLanes>
TM_DEVICE KeyPlace FindKey(const KeyRun& run, const PageDivisor& divisor, int position) {
  const int listed = Min(Max(position, run.begin), run.end - 1);
  return {FindPage<kLanes>(run.pages, divisor, listed), listed == position};
}

// Copies the keys and values at positions [tile, tile + 64) into a tile, of which the run has some; zero
// where it has none. A thread keeps its pieces of a row and copies them of every kRowsAtOnce-th row: the
// first row's address in the tile is that of the others but for a constant.
template <typename Shape>
TM_DEVICE void CopyKeys(const DevicePages& pages, const KeyRun& run, int kv_head, int tile, std::byte* keys,
                        std::byte* values) {
  constexpr int kLanes = Shape::kChunks % 8 == 0 ? 8 : 4;  // neighbours in one row
  constexpr int kRowsAtOnce = kAttentionThreads / kLanes;
  constexpr int kRows = kKeyTile / kRowsAtOnce, kPieces = Shape::kChunks / kLanes;
  static_assert(kRows * kRowsAtOnce == kKeyTile && kPieces * kLanes == Shape::kChunks);
  static_assert(Shape::Swizzle(kRowsAtOnce + 7, kLanes) ==
                Shape::Swizzle(7, 0) + kRowsAtOnce * Shape::kRowBytes + kLanes * 16);
  const int first_row = ThreadX() / kLanes, chunk = ThreadX() % kLanes;
  const int to = Shape::Swizzle(first_row, chunk);
  const std::byte* const head = pages.Head(kv_head) + chunk * 16;

  KeyPlace place[kRows];
  TM_UNROLL
  for (int i = 0; i < kRows; ++i)
    place[i] = FindKey<kLanes>(run, pages.divisor, tile + first_row + i * kRowsAtOnce);
  TM_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const std::byte* const key = head + pages.Offset(place[i].at.page, place[i].at.offset);
    TM_UNROLL
    for (int j = 0; j < kPieces; ++j) {
      const int at = to + i * kRowsAtOnce * Shape::kRowBytes + j * kLanes * 16;
      CopyAsync16(keys + at, key + j * kLanes * 16, place[i].live ? 16 : 0);
      CopyAsync16(values + at, key + pages.value_offset + j * kLanes * 16, place[i].live ? 16 : 0);
    }
  }
}

// A warp's rows of queries as fragments, one behind the other.
template <typename Shape>
TM_DEVICE void QueryFragments(const AttentionPlace<Shape>& at, const std::byte* tile,
                              uint32_t (&query)[Shape::kDimSteps][4 * Shape::kFragments]) {
  TM_UNROLL
  for (int k = 0; k < Shape::kDimSteps; ++k) {
    TM_UNROLL
    for (int f = 0; f < Shape::kFragments; ++f) {
      const int row = at.row_warp * Shape::kWarpRows + f * 16 + at.lane % 8 + (at.lane / 8 % 2) * 8;
      LoadMatrix4(query[k] + 4 * f, tile + Shape::Swizzle(row, 2 * k + at.lane / 16));
    }
  }
}

// score [kWarpRows, kWarpKeys] = query * keys^T. Element i of score[n] is of the thread's row i / 2 and key
// warp_key + 8n + 2 pair + i % 2.
template <typename Shape>
TM_DEVICE void Scores(const AttentionPlace<Shape>& at,
                      const uint32_t (&query)[Shape::kDimSteps][4 * Shape::kFragments], const std::byte* keys,
                      float (&score)[Shape::kKeySteps * 2][2 * Shape::kThreadRows]) {
  using T = typename Shape::Element;
  TM_UNROLL
  for (int k = 0; k < Shape::kDimSteps; ++k) {
    TM_UNROLL
    for (int n = 0; n < Shape::kKeySteps; ++n) {
      uint32_t key[4];
      const int row = at.warp_key() + n * 16 + (at.lane / 16) * 8 + at.lane % 8;
      LoadMatrix4(key, keys + Shape::Swizzle(row, 2 * k + at.lane / 8 % 2));
      TM_UNROLL
      for (int f = 0; f < Shape::kFragments; ++f) {
        Mma16816<T>(score[2 * n] + 4 * f, query[k] + 4 * f, key);
        Mma16816<T>(score[2 * n + 1] + 4 * f, query[k] + 4 * f, key + 2);
      }
    }
  }
}

// Hides the keys outside [begin, end) from a thread's rows. key: the warp's first key.
template <typename Shape>
TM_DEVICE void Mask(const AttentionPlace<Shape>& at, int key, const int (&begin)[Shape::kThreadRows],
                    const int (&end)[Shape::kThreadRows],
                    float (&score)[Shape::kKeySteps * 2][2 * Shape::kThreadRows]) {
  TM_UNROLL
  for (int n = 0; n < Shape::kKeySteps * 2; ++n) {
    TM_UNROLL
    for (int i = 0; i < 2 * Shape::kThreadRows; ++i) {
      const int own = key + n * 8 + at.pair * 2 + i % 2;
      const bool visible = (own >= begin[i / 2]) & (own < end[i / 2]);
      score[n][i] = visible ? score[n][i] : kMinusInfinity;
    }
  }
}

// A step of the softmax in base 2: scores become weights 2^(score * scale - highest). A row is spread over
// the four lanes of a quad.
template <typename Shape>
TM_DEVICE void Softmax(AttentionState<Shape>& state,
                       float (&score)[Shape::kKeySteps * 2][2 * Shape::kThreadRows], float scale) {
  TM_UNROLL
  for (int i = 0; i < Shape::kThreadRows; ++i) {
    float max = state.max[i];
    TM_UNROLL
    for (int n = 0; n < Shape::kKeySteps * 2; ++n) max = Max(max, Max(score[n][2 * i], score[n][2 * i + 1]));
    max = Max(max, ShuffleXor(max, 1));
    max = Max(max, ShuffleXor(max, 2));
    const float base = max == kMinusInfinity ? 0.0f : max * scale;  // no key seen yet: every weight is 0
    const float shrink = Exp2(state.max[i] * scale - base);
    state.max[i] = max;
    float sum = 0.0f;
    TM_UNROLL
    for (int n = 0; n < Shape::kKeySteps * 2; ++n) {
      TM_UNROLL
      for (int j = 2 * i; j < 2 * i + 2; ++j) {
        score[n][j] = Exp2(score[n][j] * scale - base);
        sum += score[n][j];
      }
    }
    state.sum[i] = state.sum[i] * shrink + sum;
    TM_UNROLL
    for (int d = 0; d < Shape::kDimSteps * 2; ++d) {
      state.out[d][2 * i] *= shrink;
      state.out[d][2 * i + 1] *= shrink;
    }
  }
}

// out += weights * values.
template <typename Shape>
TM_DEVICE void Accumulate(const AttentionPlace<Shape>& at,
                          const float (&score)[Shape::kKeySteps * 2][2 * Shape::kThreadRows],
                          const std::byte* values, AttentionState<Shape>& state) {
  using T = typename Shape::Element;
  TM_UNROLL
  for (int n = 0; n < Shape::kKeySteps; ++n) {
    uint32_t weight[4 * Shape::kFragments];
    TM_UNROLL
    for (int f = 0; f < Shape::kFragments; ++f) {
      weight[4 * f] = PackPair<T>(score[2 * n][4 * f], score[2 * n][4 * f + 1]);
      weight[4 * f + 1] = PackPair<T>(score[2 * n][4 * f + 2], score[2 * n][4 * f + 3]);
      weight[4 * f + 2] = PackPair<T>(score[2 * n + 1][4 * f], score[2 * n + 1][4 * f + 1]);
      weight[4 * f + 3] = PackPair<T>(score[2 * n + 1][4 * f + 2], score[2 * n + 1][4 * f + 3]);
    }
    TM_UNROLL
    for (int d = 0; d < Shape::kDimSteps; ++d) {
      uint32_t value[4];
      const int row = at.warp_key() + n * 16 + (at.lane / 8 % 2) * 8 + at.lane % 8;
      LoadMatrix4Transposed(value, values + Shape::Swizzle(row, 2 * d + at.lane / 16));
      TM_UNROLL
      for (int f = 0; f < Shape::kFragments; ++f) {
        Mma16816<T>(state.out[2 * d] + 4 * f, weight + 4 * f, value);
        Mma16816<T>(state.out[2 * d + 1] + 4 * f, weight + 4 * f, value + 2);
      }
    }
  }
}

// Sums over the lanes of a row; then warps that shared rows join their states, in warp order, over shared
// memory that nobody else needs any more. Whether the thread goes on, with the state of its rows whole and
// their highest score scaled.
template <typename Shape>
TM_DEVICE bool JoinWarps(const AttentionPlace<Shape>& at, AttentionState<Shape>& state, float scale) {
  TM_UNROLL
  for (int i = 0; i < Shape::kThreadRows; ++i) {
    state.sum[i] += ShuffleXor(state.sum[i], 1);
    state.sum[i] += ShuffleXor(state.sum[i], 2);
    state.max[i] *= scale;
  }
  if (Shape::kKeyWarps == 1) return true;
  auto* const states = reinterpret_cast<float*>(SharedBytes());  // [kKeyWarps][16][kStateStride]
  constexpr int kStride = Shape::kStateStride;
  CopyWait<0>();
  SyncThreads();
  TM_UNROLL
  for (int i = 0; i < Shape::kThreadRows; ++i) {
    float* row = states + (at.key_warp * Shape::kTileRows + at.group_lane + 8 * i) * kStride;
    TM_UNROLL
    for (int d = 0; d < Shape::kDimSteps * 2; ++d) {
      StoreShared8(row + d * 8 + at.pair * 2, {BitsOf(state.out[d][2 * i]), BitsOf(state.out[d][2 * i + 1])});
    }
    if (at.pair == 0) StoreShared8(row + Shape::kHeadDim, {BitsOf(state.max[i]), BitsOf(state.sum[i])});
  }
  SyncThreads();
  if (at.key_warp > 0) return false;
  TM_UNROLL
  for (int i = 0; i < Shape::kThreadRows; ++i) {
    const float* row = states + (at.group_lane + 8 * i) * kStride;
    float max = kMinusInfinity;
    TM_UNROLL
    for (int w = 0; w < Shape::kKeyWarps; ++w)
      max = Max(max, FloatOf(LoadShared8(row + w * Shape::kTileRows * kStride + Shape::kHeadDim).word[0]));
    const float base = max == kMinusInfinity ? 0.0f : max;
    state.max[i] = max;
    state.sum[i] = 0.0f;
    TM_UNROLL
    for (int d = 0; d < Shape::kDimSteps * 2; ++d) state.out[d][2 * i] = state.out[d][2 * i + 1] = 0.0f;
    TM_UNROLL
    for (int w = 0; w < Shape::kKeyWarps; ++w) {
      const float* other = row + w * Shape::kTileRows * kStride;
      const Vector8 max_and_sum = LoadShared8(other + Shape::kHeadDim);
      const float shrink = Exp2(FloatOf(max_and_sum.word[0]) - base);
      state.sum[i] += FloatOf(max_and_sum.word[1]) * shrink;
      TM_UNROLL
      for (int d = 0; d < Shape::kDimSteps * 2; ++d) {
        const Vector8 two = LoadShared8(other + d * 8 + at.pair * 2);
        state.out[d][2 * i] += FloatOf(two.word[0]) * shrink;
        state.out[d][2 * i + 1] += FloatOf(two.word[1]) * shrink;
      }
    }
  }
  return true;
}

// The rows' outputs, or where an item is one of several splits their part of them.
template <typename Shape>
TM_DEVICE void Write(const AttentionRunParams& p, const AttentionPlace<Shape>& at, const AttentionItem& item,
                     int kv_head, int first_token, int rows, const AttentionState<Shape>& state) {
  using T = typename Shape::Element;
  TM_UNROLL
  for (int i = 0; i < Shape::kThreadRows; ++i) {
    const int tile_row = at.row(i);
    const int r = item.row_begin + tile_row;
    if (r >= rows) continue;
    const float inverse = state.sum[i] > 0.0f ? 1.0f / state.sum[i] : 0.0f;
    const float lse = state.sum[i] > 0.0f ? state.max[i] + Log2(state.sum[i]) : kMinusInfinity;
    const int64_t token = first_token + r / p.group;
    const int head = kv_head * p.group + r % p.group;
    if (item.partial != -1) {
      const int64_t slot = SlotOfRow<Shape>(p, item, kv_head, r);
      TM_UNROLL
      for (int d = 0; d < Shape::kDimSteps * 2; ++d) {
        float* to = p.partial_out + slot * Shape::kHeadDim + d * 8 + at.pair * 2;
        StoreGlobal(reinterpret_cast<Vector8*>(to), Vector8{BitsOf(state.out[d][2 * i] * inverse),
                                                            BitsOf(state.out[d][2 * i + 1] * inverse)});
      }
      if (at.pair == 0) StoreGlobal(p.partial_lse + slot, lse);
    } else {
      auto* to =
          static_cast<T*>(p.out) + token * p.out_stride + int64_t{head} * Shape::kHeadDim + at.pair * 2;
      TM_UNROLL
      for (int d = 0; d < Shape::kDimSteps * 2; ++d) {
        StoreGlobal(reinterpret_cast<uint32_t*>(to + d * 8),
                    PackPair<T>(state.out[d][2 * i] * inverse, state.out[d][2 * i + 1] * inverse));
      }
      if (p.lse != nullptr && at.pair == 0) {
        StoreGlobal(p.lse + token * (p.kv.format.kv_heads * p.group) + head, lse);
      }
    }
  }
}

}  // namespace tramontane::cuda
