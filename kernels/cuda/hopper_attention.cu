// Paged grouped-query attention with a sliding window on sm_90a: prefill and mixtures by wgmma and TMA.
//
// Shapes: query, out [tokens, query_heads * head_dim] bf16; pages of bf16 (KvLayerView) behind one map.
// Grid:   HopperPrefillKernel: as many blocks as the device has multiprocessors, each of three warpgroups. A
//         block takes every so many of the pairs (AttentionItem, kv head): in turns forwards and backwards
//         over the blocks, so that a list in order of length falls evenly. A tile is 128 rows (row = token *
//         group + head in group) against the keys [key_begin, key_end), 128 at a time.
//           warpgroup 0 fetches: warp 0 keys and values, two stages of each, by boxes of one page; warp 1
//             clears what came with a page and is not the item's; warps 2 and 3 fetch the queries, of
//             an item ahead;
//           warpgroups 1 and 2 take 64 rows each: scores, softmax and weighted values in registers. One asks
//             for its products while the other one weighs: they take turns by two named barriers; and within
//             one, the scores of a tile are under way beside the values of the tile before, the first of an
//             item beside the last of the item before.
//         Of rows whose keys were split the warpgroup that counts the last part of its 64 joins all
//         (attention_join.cuh). It counts its parts when all its work is done.
// Bytes:  d = head_dim; pages = those of the item's range in which some row sees a key.
//         an item and kv head reads    40 + rows * 2d + pages * (4 + page_size * 4d): its lengths, the query,
//                                      and each page's number, keys and values
//                             writes   rows * 2d (+ rows * 4 with lse), or rows * (4d + 4) when it is a part
//         a part and those who join some: attention_join.cuh, for each warpgroup. A block reads 4.
// Limits: head_dim 64 and 128; group 1..16; bf16; pages of 8, 16, 32, 64 or 128 tokens; sm_90a alone.
// Math:   scores in f32, softmax in base 2, P rounded to bf16 before the second product, f32 sums.
// Ideas:  FlashAttention-3 (a warpgroup that fetches, two that take turns, products of two tiles under way at
//         once), FlashInfer (a pool of pages as one tensor map, one box a page), ThunderKittens (the tile as
//         the program's unit).
#include <bit>

#include "kernels/core/check.h"
#include "kernels/cuda/attention_join.cuh"
#include "kernels/cuda/hopper_tile.cuh"

namespace tramontane::cuda {
namespace {

constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2;                            // warpgroups that compute
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;  // 384
constexpr int kConsumerRows = 64;                        // of one warpgroup: m of wgmma
constexpr int kStages = 2;                               // of keys, of values, and of items' queries
constexpr int kAtomBytes = 8 * kBoxRowBytes;             // eight rows: the period of SWIZZLE_128B
constexpr int kTurns = 1;                                // named barriers 1 and 2: a warpgroup's turn
constexpr int kParts = kTurns + kConsumers;              // 3 and 4: of a warpgroup that has written a part
constexpr int kFetchRegisters = 40, kComputeRegisters = 232;
constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;  // of a thread, before warpgroups trade them
static_assert(kFetchRegisters + kConsumers * kComputeRegisters <= (1 + kConsumers) * kLaunchRegisters);
static_assert(kConsumers * kConsumerRows == kHopperPrefillRows && kWarpgroup == kPartThreads);

constexpr int64_t kMostPoolBytes = int64_t{1} << 40;  // more than any device has

template <int kHeadDimensions>
struct PrefillTile {
  static constexpr int kHeadDim = kHeadDimensions;
  static constexpr int kKeys = kHopperKeyTile;
  static constexpr int kPieces = kHeadDim / 8;                   // 16 bytes each, of a row
  static constexpr int kPartBytes = kKeys * kBoxRowBytes;        // of 64 of head_dim
  static constexpr int kTileBytes = kHeadDim / 64 * kPartBytes;  // keys, values, or the queries
  static constexpr int kBarrierBytes = 256;
  static constexpr int kSharedBytes = 3 * kStages * kTileBytes + kBarrierBytes;
  static_assert(kHopperPrefillRows == kKeys);
};

// In shared memory. A count in brackets is that of arrivals.
struct PrefillBarriers {
  Mbarrier keys_full[kStages], keys_empty[kStages];      // [1], [warps that compute]
  Mbarrier values_full[kStages], values_empty[kStages];  // [1], [warps that compute, and that clears]
  Mbarrier values_clean[kStages];                        // [a warp]; of tiles with stale rows only
  Mbarrier query_full[kConsumers][kStages], query_empty[kConsumers][kStages];  // [a warp], [of a warpgroup]
  int32_t is_last[kConsumers];                                                 // of FinishPart
};
static_assert(sizeof(PrefillBarriers) <= 256);

template <typename Shape>
struct PrefillShared {
  std::byte* base = AlignedSharedBytes();

  TM_DEVICE std::byte* query(int consumer, int stage) const {
    return base + stage * Shape::kTileBytes + consumer * kConsumerRows * kBoxRowBytes;
  }
  TM_DEVICE std::byte* keys(int stage) const { return base + (kStages + stage) * Shape::kTileBytes; }
  TM_DEVICE std::byte* values(int stage) const { return base + (2 * kStages + stage) * Shape::kTileBytes; }
  TM_DEVICE PrefillBarriers* barriers() const {
    return reinterpret_cast<PrefillBarriers*>(base + 3 * kStages * Shape::kTileBytes);
  }
};

// The n-th tile of keys, or item, that passes through the stages.
TM_DEVICE int StageOf(unsigned n) { return static_cast<int>(n % kStages); }
TM_DEVICE int ParityOf(unsigned n) { return static_cast<int>(n / kStages % 2); }

TM_DEVICE int WorkItems(const AttentionRunParams& p) {
  return LoadUniform(&p.work->items) * p.kv.format.kv_heads;
}
// The k-th piece of work of a block.
TM_DEVICE int WorkOf(unsigned k) {
  const int turn = static_cast<int>(k) * GridX();
  return k % 2 == 0 ? turn + BlockX() : turn + GridX() - 1 - BlockX();
}

// ---- warpgroup 0 --------------------------------------------------------------------------------

template <typename Shape>
TM_DEVICE void FetchKeysAndValues(const HopperAttentionParams& p, const PrefillShared<Shape>& shared) {
  PrefillBarriers* barriers = shared.barriers();
  const int work = WorkItems(p.run);
  unsigned n = 0;
  for (unsigned k = 0; WorkOf(k) < work; ++k) {
    const HopperItem item = ReadItem<Shape::kKeys>(p, WorkOf(k));
    int tile = item.tile_begin;
    do {  // a tile at least, for rows that see nothing
      const int stage = StageOf(n), emptied = ParityOf(n) ^ 1;
      const int page = PageOfLane<Shape::kKeys>(p, item, tile);
      WaitPhase(&barriers->keys_empty[stage], emptied);
      FetchTile<Shape::kKeys, Shape::kHeadDim>(p, item, page, p.first_half, shared.keys(stage),
                                               &barriers->keys_full[stage]);
      WaitPhase(&barriers->values_empty[stage], emptied);
      FetchTile<Shape::kKeys, Shape::kHeadDim>(p, item, page, p.first_half + 1, shared.values(stage),
                                               &barriers->values_full[stage]);
      ++n;
    } while ((tile += Shape::kKeys) < item.key_end);
  }
}

template <typename Shape>
TM_DEVICE void CleanValues(const HopperAttentionParams& p, const PrefillShared<Shape>& shared) {
  PrefillBarriers* barriers = shared.barriers();
  const int work = WorkItems(p.run);
  unsigned n = 0;
  for (unsigned k = 0; WorkOf(k) < work; ++k) {
    const HopperItem item = ReadItem<Shape::kKeys>(p, WorkOf(k));
    int tile = item.tile_begin;
    do {
      const int stage = StageOf(n);
      WaitPhase(&barriers->values_full[stage], ParityOf(n));
      const StaleRows stale = StaleRowsOf<Shape::kKeys>(item, tile, p.page_log2);
      if (stale.Any()) {
        ClearRows<Shape::kKeys, Shape::kHeadDim>(stale.before_begin, stale.before_end, shared.values(stage));
        ClearRows<Shape::kKeys, Shape::kHeadDim>(stale.behind_begin, stale.behind_end, shared.values(stage));
        FenceAsyncProxy();
        Arrive(&barriers->values_clean[stage]);
      }
      // Also of tiles with nothing to clear: two phases farther the parity of values_full would say nothing.
      Release(&barriers->values_empty[stage]);
      ++n;
    } while ((tile += Shape::kKeys) < item.key_end);
  }
}

// The 64 rows of one warpgroup, zero beyond the sequence's last one.
template <typename Shape>
TM_DEVICE void FetchQueries(const HopperAttentionParams& p, const PrefillShared<Shape>& shared,
                            int consumer) {
  PrefillBarriers* barriers = shared.barriers();
  const int work = WorkItems(p.run);
  for (unsigned k = 0; WorkOf(k) < work; ++k) {
    const HopperItem item = ReadItem<Shape::kKeys>(p, WorkOf(k));
    const int stage = StageOf(k);
    WaitPhase(&barriers->query_empty[consumer][stage], ParityOf(k) ^ 1);
    // A lane has the same 16 bytes of every kStep-th row, which it steps to without a division; a tile's rows
    // lie within 2 GiB.
    constexpr int kStep = 32 / Shape::kPieces, kHeadBytes = Shape::kHeadDim * 2;
    const int first = LaneId() / Shape::kPieces, piece = LaneId() % Shape::kPieces;
    const int r = item.row_begin + consumer * kConsumerRows + first;
    const int token = p.by_group.Quotient(r), tokens_of_step = p.by_group.Quotient(kStep);
    const int heads_of_step = kStep - tokens_of_step * p.by_group.size();
    const auto token_bytes = static_cast<unsigned>(p.run.query_stride * 2);
    const unsigned step_bytes = tokens_of_step * token_bytes + heads_of_step * kHeadBytes;
    const unsigned wrap_bytes = token_bytes - p.by_group.size() * kHeadBytes;
    int head = r - token * p.by_group.size(), rows_left = item.rows - r;
    const auto* const from = static_cast<const std::byte*>(p.run.query) +
                             (item.first_token + token) * p.run.query_stride * 2 +
                             (item.kv_head * p.run.group + head) * kHeadBytes + piece * 16;
    std::byte* const to =
        shared.query(consumer, stage) + piece / 8 * Shape::kPartBytes + first * kBoxRowBytes;
    const int swizzle = (piece ^ first) % 8 * 16;
    unsigned from_bytes = 0;
    TM_UNROLL_BY_4
    for (int to_bytes = 0; to_bytes < kConsumerRows * kBoxRowBytes; to_bytes += kStep * kBoxRowBytes) {
      // Steps leave the low bits of a row to `first`, so that its swizzle is that of both.
      CopyAsync16(to + to_bytes + (swizzle ^ to_bytes / kBoxRowBytes % 8 * 16), from + from_bytes,
                  rows_left > 0 ? 16 : 0);
      rows_left -= kStep;
      head += heads_of_step;
      const bool wraps = head >= p.by_group.size();
      head -= wraps ? p.by_group.size() : 0;
      from_bytes += step_bytes + (wraps ? wrap_bytes : 0);
    }
    CopyCommit();
    CopyWait<0>();
    FenceAsyncProxy();
    Arrive(&barriers->query_full[consumer][stage]);
  }
}

// ---- warpgroups 1 and 2 -------------------------------------------------------------------------

// A thread's two rows, lane / 4 and lane / 4 + 8 of its warp's 16, and what they see of [first, last].
struct PrefillRows {
  int row[2];  // of the tile
  int first[2], last[2];
  int all_first, all_last;  // what every row of the warpgroup sees
};

TM_DEVICE PrefillRows RowsOfThread(const HopperAttentionParams& p, const HopperItem& item, int consumer) {
  const int begin = item.row_begin + consumer * kConsumerRows;
  const auto position = [&](int r) {
    return item.first_position + p.by_group.Quotient(std::min(r, item.rows - 1));
  };
  const auto first_of = [&](int at) {
    return std::max(item.key_begin, static_cast<int>(FirstVisible(at, p.run.window)));
  };
  const auto last_of = [&](int at) { return std::min(at, item.key_end - 1); };
  PrefillRows rows;
  TM_UNROLL
  for (int i = 0; i < 2; ++i) {
    rows.row[i] = consumer * kConsumerRows + ThreadX() % kWarpgroup / 32 * 16 + LaneId() / 4 + 8 * i;
    const int at = position(item.row_begin + rows.row[i]);
    rows.first[i] = first_of(at);
    rows.last[i] = last_of(at);
  }
  rows.all_first = first_of(position(begin + kConsumerRows - 1));
  rows.all_last = last_of(position(begin));
  return rows;
}

// Element i of a fragment [64 rows, 2 * size] is of the thread's row i / 2 % 2 and column 8 (i / 4) +
// 2 (lane % 4) + i % 2.
template <int kSize>
using Fragment = float[kSize];

// The softmax so far of a thread's two rows: highest score (not yet scaled), sum of 2^((score - highest) *
// scale), and the values weighted by it.
template <typename Shape>
struct PrefillRunning {
  Fragment<Shape::kHeadDim / 2> out;
  float max[2], sum[2];
};

// Asks for score [64, kKeys] = query * keys^T.
template <typename Shape>
TM_DEVICE void Scores(const std::byte* query, const std::byte* keys, Fragment<Shape::kKeys / 2>& score) {
  const uint64_t a = MatrixDescriptor(query, 16, kAtomBytes), b = MatrixDescriptor(keys, 16, kAtomBytes);
  PinRegisters(score);
  WgmmaFence();
  TM_UNROLL
  for (int k = 0; k < Shape::kHeadDim / 16; ++k) {
    const int at = k / 4 * Shape::kPartBytes + k % 4 * 32;
    WgmmaShared<Shape::kKeys>(score, Advanced(a, at), Advanced(b, at), k > 0);
  }
  WgmmaCommit();
}

// Asks for out [64, head_dim] += weight [64, kKeys] * values.
template <typename Shape>
TM_DEVICE void Accumulate(const uint32_t (&weight)[Shape::kKeys / 16][4], const std::byte* values,
                          Fragment<Shape::kHeadDim / 2>& out) {
  const uint64_t b = MatrixDescriptor(values, Shape::kPartBytes, kAtomBytes);
  PinRegisters(out);
  WgmmaFence();
  TM_UNROLL
  for (int k = 0; k < Shape::kKeys / 16; ++k)
    WgmmaRegisters<Shape::kHeadDim>(out, weight[k], Advanced(b, k * 16 * kBoxRowBytes));
  WgmmaCommit();
}

// Hides keys of the tile from rows that do not see them. Most tiles have none.
template <typename Shape>
TM_DEVICE void Mask(const PrefillRows& rows, int tile, Fragment<Shape::kKeys / 2>& score) {
  if (tile >= rows.all_first && tile + Shape::kKeys - 1 <= rows.all_last) return;
  const int column = tile + LaneId() % 4 * 2;
  TM_UNROLL
  for (int i = 0; i < Shape::kKeys / 2; ++i) {
    const int key = column + i / 4 * 8 + i % 2, r = i / 2 % 2;
    score[i] = key >= rows.first[r] && key <= rows.last[r] ? score[i] : kMinusInfinity;
  }
}

// Scores become weights. `shrink`: what the values so far have to be multiplied by.
template <typename Shape>
TM_DEVICE void Softmax(float scale, Fragment<Shape::kKeys / 2>& score, PrefillRunning<Shape>& running,
                       float (&shrink)[2]) {
  TM_UNROLL
  for (int r = 0; r < 2; ++r) {
    float max = running.max[r];
    TM_UNROLL
    for (int i = 2 * r; i < Shape::kKeys / 2; i += 4) max = Max(max, Max(score[i], score[i + 1]));
    max = Max(max, ShuffleXor(max, 1));
    max = Max(max, ShuffleXor(max, 2));
    const float base = max == kMinusInfinity ? 0.0f : max * scale;  // no key seen yet: every weight is 0
    shrink[r] = Exp2(running.max[r] * scale - base);
    running.max[r] = max;
    float sum = 0.0f;
    TM_UNROLL
    for (int i = 2 * r; i < Shape::kKeys / 2; i += 4) {
      TM_UNROLL
      for (int j = i; j < i + 2; ++j) {
        score[j] = Exp2(score[j] * scale - base);
        sum += score[j];
      }
    }
    running.sum[r] = running.sum[r] * shrink[r] + sum;
  }
}

template <typename Shape>
TM_DEVICE void Rescale(const float (&shrink)[2], Fragment<Shape::kHeadDim / 2>& out) {
  TM_UNROLL
  for (int i = 0; i < Shape::kHeadDim / 2; ++i) out[i] *= shrink[i / 2 % 2];
}

// A fragment of sums is one of the factor a.
template <typename Shape>
TM_DEVICE void Pack(const Fragment<Shape::kKeys / 2>& score, uint32_t (&weight)[Shape::kKeys / 16][4]) {
  TM_UNROLL
  for (int i = 0; i < Shape::kKeys / 2; i += 2)
    weight[i / 8][i / 2 % 4] = PackPair<Bf16>(score[i], score[i + 1]);
}

// The rows' outputs, or where an item is one of several splits their part of them.
template <typename Shape>
TM_DEVICE void Write(const HopperAttentionParams& params, const HopperItem& item, const PrefillRows& rows,
                     const PrefillRunning<Shape>& running) {
  const AttentionRunParams& p = params.run;
  const int column = LaneId() % 4 * 2;
  TM_UNROLL
  for (int r = 0; r < 2; ++r) {
    float sum = running.sum[r] + ShuffleXor(running.sum[r], 1);
    sum += ShuffleXor(sum, 2);
    const int row = item.row_begin + rows.row[r];
    if (row >= item.rows) continue;
    const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    const float lse = sum > 0.0f ? running.max[r] * (p.scale * kHopperLog2E) + Log2(sum) : kMinusInfinity;
    const int own_token = params.by_group.Quotient(row);
    const int64_t token = item.first_token + own_token;
    const int head = item.kv_head * p.group + row - own_token * p.group;
    if (item.partial >= 0) {
      const int64_t slot =
          (int64_t{item.partial} * p.kv.format.kv_heads + item.kv_head) * kHopperPrefillRows + rows.row[r];
      float* to = p.partial_out + slot * Shape::kHeadDim + column;
      TM_UNROLL
      for (int i = 2 * r; i < Shape::kHeadDim / 2; i += 4) {
        StoreGlobal(reinterpret_cast<Vector8*>(to + i / 4 * 8),
                    Vector8{{BitsOf(running.out[i] * inverse), BitsOf(running.out[i + 1] * inverse)}});
      }
      if (column == 0) StoreGlobal(p.partial_lse + slot, lse);
    } else {
      auto* to = static_cast<Bf16*>(p.out) + token * p.out_stride + head * Shape::kHeadDim + column;
      TM_UNROLL
      for (int i = 2 * r; i < Shape::kHeadDim / 2; i += 4) {
        StoreGlobal(reinterpret_cast<uint32_t*>(to + i / 4 * 8),
                    PackPair<Bf16>(running.out[i] * inverse, running.out[i + 1] * inverse));
      }
      if (p.lse != nullptr && column == 0)
        StoreGlobal(p.lse + token * (p.kv.format.kv_heads * p.group) + head, lse);
    }
  }
}

template <typename Shape>
TM_DEVICE void Compute(const HopperAttentionParams& p, const PrefillShared<Shape>& shared, int consumer) {
  PrefillBarriers* barriers = shared.barriers();
  const int work = WorkItems(p.run);
  const float scale = p.run.scale * kHopperLog2E;
  const int own_turn = kTurns + consumer, other_turn = kTurns + 1 - consumer;
  constexpr int kTurnThreads = kConsumers * kWarpgroup;
  Fragment<Shape::kKeys / 2> score;
  uint32_t weight[Shape::kKeys / 16][4];
  PrefillRunning<Shape> running;
  float shrink[2];
  HopperItem item;
  PrefillRows rows;
  int tile = 0;               // of the item, the last of these
  unsigned n = 0;             // tiles whose scores are there
  int cleaned[kStages] = {};  // parity of the next phase of values_clean

  // Asks for the values of `tile`.
  const auto accumulate = [&] {
    const int stage = StageOf(n - 1);
    WaitPhase(&barriers->values_full[stage], ParityOf(n - 1));
    if (StaleRowsOf<Shape::kKeys>(item, tile, p.page_log2).Any()) {
      WaitPhase(&barriers->values_clean[stage], stage == 0 ? cleaned[0] : cleaned[1]);
      stage == 0 ? cleaned[0] ^= 1 : cleaned[1] ^= 1;
    }
    Accumulate<Shape>(weight, shared.values(stage), running.out);
  };
  const auto have_values = [&](unsigned number) {
    WgmmaWait<0>();
    PinRegisters(running.out);
    Release(&barriers->values_empty[StageOf(number)]);
  };

  const auto have_scores = [&] {
    PinRegisters(score);
    Release(&barriers->keys_empty[StageOf(n)]);
    ++n;
  };
  // Number k of the block, whose first scores are there.
  const auto begin_item = [&](unsigned k) {
    item = ReadItem<Shape::kKeys>(p, WorkOf(k));
    rows = RowsOfThread(p, item, consumer);
    tile = item.tile_begin;
    TM_UNROLL
    for (int i = 0; i < Shape::kHeadDim / 2; ++i) running.out[i] = 0.0f;
    running.max[0] = running.max[1] = kMinusInfinity;
    running.sum[0] = running.sum[1] = 0.0f;
    Mask<Shape>(rows, tile, score);
    Softmax<Shape>(scale, score, running, shrink);
    Pack<Shape>(score, weight);
  };
  const auto wait_for_keys = [&] { WaitPhase(&barriers->keys_full[StageOf(n)], ParityOf(n)); };
  const auto wait_for_query = [&](unsigned k) {
    WaitPhase(&barriers->query_full[consumer][StageOf(k)], ParityOf(k));
  };
  const auto has_next = [&] { return tile + Shape::kKeys < item.key_end; };

  if (WorkOf(0) >= work) return;
  if (consumer == 1) ArriveAtNamedBarrier(other_turn, kTurnThreads);  // the other one goes first
  wait_for_query(0);
  wait_for_keys();
  Scores<Shape>(shared.query(consumer, 0), shared.keys(0), score);
  WgmmaWait<0>();
  have_scores();
  begin_item(0);
  unsigned k = 0;
  while (true) {
    const std::byte* const query = shared.query(consumer, StageOf(k));
    if (has_next()) wait_for_keys();
    while (has_next()) {
      // The scores of the next tile beside the values of this one.
      SyncNamedBarrier(own_turn, kTurnThreads);
      Scores<Shape>(query, shared.keys(StageOf(n)), score);
      accumulate();
      ArriveAtNamedBarrier(other_turn, kTurnThreads);
      WgmmaWait<1>();
      have_scores();
      // Before the weights are made, not beside it: on an H200 a warpgroup that leaves this wait for later is
      // 4 to 9 % slower, since the other one's products fill the tensor cores meanwhile.
      have_values(n - 2);
      tile += Shape::kKeys;
      Mask<Shape>(rows, tile, score);
      Softmax<Shape>(scale, score, running, shrink);
      if (has_next()) wait_for_keys();
      Rescale<Shape>(shrink, running.out);
      Pack<Shape>(score, weight);
    }
    Release(&barriers->query_empty[consumer][StageOf(k)]);
    ++k;
    if (WorkOf(k) >= work) break;
    // The scores of the next item's first tile beside the last values of this one, which is done then.
    wait_for_query(k);
    wait_for_keys();
    SyncNamedBarrier(own_turn, kTurnThreads);
    Scores<Shape>(shared.query(consumer, StageOf(k)), shared.keys(StageOf(n)), score);
    accumulate();
    ArriveAtNamedBarrier(other_turn, kTurnThreads);
    WgmmaWait<1>();
    have_scores();
    have_values(n - 2);
    Write<Shape>(p, item, rows, running);
    begin_item(k);
  }
  accumulate();
  have_values(n - 1);
  Write<Shape>(p, item, rows, running);
  if (consumer == 0) SyncNamedBarrier(own_turn, kTurnThreads);  // for the first arrival
}

// Counts the parts that a warpgroup has written, and joins what it was the last of. Behind all of its work:
// within, these loops would have the compiler expect lanes apart wherever products are waited for.
template <typename Shape>
TM_DEVICE void FinishParts(const HopperAttentionParams& p, const PrefillShared<Shape>& shared, int consumer) {
  if (LoadUniform(&p.run.work->partials) == 0) return;
  const int work = WorkItems(p.run);
  for (unsigned k = 0; WorkOf(k) < work; ++k) {
    const int number = p.by_kv_heads.Quotient(WorkOf(k));
    const int kv_head = WorkOf(k) - number * p.by_kv_heads.size();
    const AttentionItem* const item = p.run.items + number;
    const int sequence = LoadUniform(&item->sequence), partial = LoadUniform(&item->partial);
    if (partial == -1) continue;
    FinishPart<Bf16>(p.run, {item, sequence, partial, kv_head, kConsumers, consumer}, Shape::kHeadDim,
                     &shared.barriers()->is_last[consumer],
                     [consumer] { SyncNamedBarrier(kParts + consumer, kWarpgroup); });
  }
}

}  // namespace

template <int kHeadDim>
TM_KERNEL TM_BOUNDS(kThreads, 1) void HopperPrefillKernel(const TM_GRID_CONSTANT HopperAttentionParams p) {
  using Shape = PrefillTile<kHeadDim>;
  const PrefillShared<Shape> shared;
  if (ThreadX() == 0) {
    PrefillBarriers* barriers = shared.barriers();
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(&barriers->keys_full[i], 1);
      InitBarrier(&barriers->keys_empty[i], kConsumers * kWarpgroup / 32);
      InitBarrier(&barriers->values_full[i], 1);
      InitBarrier(&barriers->values_empty[i], kConsumers * kWarpgroup / 32 + 1);
      InitBarrier(&barriers->values_clean[i], 32);
    }
    for (int i = 0; i < kConsumers * kStages; ++i) {
      InitBarrier(&barriers->query_full[i / kStages][i % kStages], 32);
      InitBarrier(&barriers->query_empty[i / kStages][i % kStages], kWarpgroup / 32);
    }
    FenceBarrierInit();
    PrefetchMap(p.pool);
  }
  SyncThreads();
  AwaitPriorKernels();
  const int warp = ThreadX() / 32;
  if (warp < kWarpgroup / 32) {
    LowerRegisterCount<kFetchRegisters>();
    if (warp == 0) {
      FetchKeysAndValues(p, shared);
    } else if (warp == 1) {
      CleanValues(p, shared);
    } else {
      FetchQueries(p, shared, warp - 2);
    }
  } else {
    RaiseRegisterCount<kComputeRegisters>();
    Compute(p, shared, warp / 4 - 1);
    FinishParts(p, shared, warp / 4 - 1);
  }
}

bool HopperSupported(const KvLayerView& kv) {
  const KvFormat& format = kv.format;
  const bool shape = format.element == DType::kBf16 && !format.latent() &&
                     (format.head_dim == 64 || format.head_dim == 128) && format.page_size >= 8 &&
                     format.page_size <= kHopperKeyTile && std::has_single_bit(unsigned(format.page_size));
  if (!shape) return false;
  const KvStrides own = StridesOfPool(format, kv.page_bytes);
  return kv.value_offset == own.kv && kv.head_bytes == own.head && kv.token_bytes == own.token &&
         kv.layer_offset % own.layer == 0 && kv.page_bytes % 16 == 0 && kv.page_bytes >= own.layer;
}

int MakePoolMap(const KvLayerView& kv, TensorMap* map) {
  TM_CHECK(HopperSupported(kv), "pages that no tensor map describes");
  const KvFormat& format = kv.format;
  return MakeTensorMap({.base = kv.pool,
                        .sizes = {format.head_dim, format.page_size, format.kv_heads,
                                  kv.page_bytes / kv.value_offset, kMostPoolBytes / kv.page_bytes},
                        .stride_bytes = {kv.token_bytes, kv.head_bytes, kv.value_offset, kv.page_bytes},
                        .box = {64, format.page_size, 1, 1, 1}},
                       map);
}

namespace {

template <int kHeadDim>
int LaunchPrefill(const HopperAttentionParams& p, Stream stream) {
  using Shape = PrefillTile<kHeadDim>;
  if (const int error = AllowSharedBytes<HopperPrefillKernel<kHeadDim>, Shape::kSharedBytes>()) return error;
  const int64_t most = int64_t{p.run.max_items} * p.run.kv.format.kv_heads;
  const auto blocks = static_cast<unsigned>(most < p.blocks ? most : p.blocks);
  return TM_LAUNCH((HopperPrefillKernel<kHeadDim>), Dim3{blocks}, Dim3{kThreads}, Shape::kSharedBytes, stream,
                   p);
}

}  // namespace

HopperAttentionParams PreparedForHopper(const HopperAttentionParams& params) {
  TM_CHECK(HopperSupported(params.run.kv), "pages that no tensor map describes");
  HopperAttentionParams p = params;
  p.page_log2 = std::countr_zero(static_cast<unsigned>(p.run.kv.format.page_size));
  p.first_half = static_cast<int32_t>(p.run.kv.layer_offset / p.run.kv.value_offset);
  p.run.pages = DevicePages(p.run.kv);
  p.by_kv_heads = PageDivisor(p.run.kv.format.kv_heads);
  p.by_group = PageDivisor(p.run.group);
  return p;
}

int RunHopperPrefill(const HopperAttentionParams& params, void* stream) {
  TM_CHECK(params.run.tile_rows == kHopperPrefillRows && params.blocks > 0, "tiles of %d rows in %d blocks",
           params.run.tile_rows, params.blocks);
  const HopperAttentionParams p = PreparedForHopper(params);
  const auto to = static_cast<Stream>(stream);
  return p.run.kv.format.head_dim == 64 ? LaunchPrefill<64>(p, to) : LaunchPrefill<128>(p, to);
}

}  // namespace tramontane::cuda
