// Attention over latent pages (multi-head latent attention): a token has one row of ckv and kpe lanes, which
// is the key of every head, and whose first lanes are the value.
//
// Shapes: D = head_dim lanes of a row, V = latent_value_dim of them its value; bf16 query
//         [tokens, query_heads * D] and out [tokens, query_heads * V]; latent pages of bf16 (KvLayerView).
// Grid:   LatentAttentionKernel (max_items, kv_heads) blocks of 4 warps. A block takes one AttentionItem: 16
//         rows (row = token * group + head in group) against the keys [key_begin, key_end), 32 at a time.
//         Warp w scores all rows with keys 8w..8w+7; the scores pass through shared memory, every warp
//         follows the softmax of all 32 keys, and warp w adds up every fourth 16 lanes of the values, from
//         16w on. So no warp holds more than a quarter of an output row, and a key lies in shared memory
//         once. Of rows whose keys were split the block that writes the last part joins all
//         (attention_join.cuh).
// Bytes:  rows = live rows of the tile; keys = those of the item's range that some row sees.
//         an item and kv head reads    44 + rows * 2D + keys * 2D + steps * 128: its lengths, the query, rows
//                                      of pages, and of each step of 32 keys a page number a row; + 4 where
//                                      tables are rings
//                                      where a sequence of the call has a mask + 12, and where it is this one
//                                      rows * keys, a byte for each pair
//                             writes   rows * 2V (+ rows * 4 with lse), or rows * (4V + 4) when it is a part
//         a part and those who join some: attention_join.cuh, of V elements a row, lse read once and once for
//         each 128 of them. Every other block reads 4.
//         A tile has 16 of the heads: of 128 heads eight blocks read a key, seven of them from the L2 cache.
// Limits: D a multiple of 8 up to 576, V one up to 512; any group, window and page size; no sinks; sm_80 and
//         later (mma.sync, 94 KiB of shared memory).
// Issue:  a warp issues 17 instructions from a step's scores to the barrier behind them where all rows see
//         all its keys, some 70 elsewhere (sm_90a); scores pass through shared memory in pairs, without bank
//         conflicts.
// Math:   scores in f32, those of odd and of even steps of 16 lanes apart; softmax in base 2, P rounded to
//         bf16 before the second product, f32 sums.
// Ideas:  FlashMLA (one row for all heads, the value out of the key's tile), attention.cu's items and parts.
#include "kernels/cuda/attention_latent.h"

#include "kernels/cuda/attention_join.cuh"
#include "kernels/cuda/attention_tile.cuh"

namespace tramontane::cuda {

namespace {

constexpr int kLatentWarps = 4;
constexpr int kLatentThreads = kLatentWarps * 32;
constexpr int kLatentTiles = kMostLatentValueDim / 16 / kLatentWarps;  // of 16 lanes of the value, a warp's
static_assert(kLatentKeys == 8 * kLatentWarps && kKeyTile % kLatentKeys == 0);
static_assert(kLatentThreads == kPartThreads);

// How rows lie in shared memory.
struct LatentTile {
  int live_chunks;  // pieces of 16 bytes of a row
  int chunks;       // of these and zeros, so that two steps of 16 lanes can be taken at once
  int row_bytes;

  TM_HOST_DEVICE explicit LatentTile(int dim)
      : live_chunks(dim / 8), chunks((dim + 31) / 32 * 4), row_bytes(LatentRowBytes(dim)) {}

  // Byte offset of a piece. The exclusive or spreads eight neighbouring rows over all banks.
  TM_HOST_DEVICE int At(int row, int chunk) const { return row * row_bytes + (chunk ^ (row & 7)) * 16; }

  TM_HOST_DEVICE int KeysAt() const { return kLatentRows * row_bytes; }
  TM_HOST_DEVICE int ScoresAt() const { return KeysAt() + kLatentStages * kLatentKeys * row_bytes; }
};

// The lengths of an item's sequence: its queries are its last tokens.
struct LatentSequence {
  int first_token, tokens;
  PagesOfSequence pages;
  int kv_end;
  int kv_base;          // where a sequence of the call has a mask
  const uint8_t* mask;  // null: it has none
};

TM_DEVICE LatentSequence SequenceOf(const LatentAttentionParams& p, int sequence) {
  const AttentionRunParams& run = p.run;
  LatentSequence of;
  of.first_token = LoadUniform(run.qo_indptr + sequence);
  of.tokens = LoadUniform(run.qo_indptr + sequence + 1) - of.first_token;
  of.pages = LoadPages(run.table, sequence);
  of.kv_end = LoadUniform(run.table.kv_end + sequence);
  of.kv_base = 0;
  of.mask = nullptr;
  if (p.mask.bits != nullptr) {
    of.kv_base = LoadUniform(run.table.kv_base + sequence);
    const int begin = LoadUniform(p.mask.indptr + sequence);
    if (begin < LoadUniform(p.mask.indptr + sequence + 1)) of.mask = p.mask.bits + begin;
  }
  return of;
}

// The rows at positions [first, first + 32) of the sequence, of which [begin, end) has some; zero where it
// has none. Eight neighbouring threads copy one row, and ask for its page together.
TM_DEVICE void CopyLatentKeys(const DevicePages& pages, const LatentTile& tile,
                              const LatentSequence& sequence, int kv_head, int first, int begin, int end,
                              std::byte* to) {
  constexpr int kLanes = 8, kRowsAtOnce = kLatentThreads / kLanes;
  TM_UNROLL
  for (int i = 0; i < kLatentKeys / kRowsAtOnce; ++i) {
    const int row = ThreadX() / kLanes + i * kRowsAtOnce;
    // A row without a key takes the nearest one's address, for copies of no bytes.
    const int listed = Min(Max(first + row, begin), end - 1);
    const PagePlace place = FindPage<kLanes>(sequence.pages, pages.divisor, listed);
    const std::byte* const key = pages.Head(kv_head) + pages.Offset(place.page, place.offset);
    for (int chunk = ThreadX() % kLanes; chunk < tile.chunks; chunk += kLanes) {
      const bool live = listed == first + row && chunk < tile.live_chunks;
      CopyAsync16(to + tile.At(row, chunk), live ? key + chunk * 16 : key, live ? 16 : 0);
    }
  }
}

TM_DEVICE void LoadLatentQueries(const AttentionRunParams& run, const LatentTile& tile,
                                 const LatentSequence& sequence, int kv_head, int row_begin,
                                 std::byte* queries) {
  for (int piece = ThreadX(); piece < kLatentRows * tile.chunks; piece += kLatentThreads) {
    const int row = piece / tile.chunks, chunk = piece % tile.chunks;
    const int r = row_begin + row;
    const bool live = r < sequence.tokens * run.group && chunk < tile.live_chunks;
    const auto* source = static_cast<const std::byte*>(run.query);
    if (live) {
      const int64_t element = (sequence.first_token + r / run.group) * run.query_stride +
                              int64_t{kv_head * run.group + r % run.group} * run.kv.format.head_dim +
                              chunk * 8;
      source += element * 2;
    }
    CopyAsync16(queries + tile.At(row, chunk), source, live ? 16 : 0);
  }
}

// score [16 rows, 8 keys from `key_row` on]: elements 0 and 1 are of row lane / 4 and keys 2 (lane % 4) and
// one more, 2 and 3 of the row 8 below.
TM_DEVICE void ScoreLatentKeys(const LatentTile& tile, const std::byte* queries, const std::byte* keys,
                               int key_row, float (&score)[4]) {
  const int lane = LaneId();
  const int query_row = lane % 8 + (lane / 8 % 2) * 8;
  float odd[4] = {};
  for (int chunk = 0; chunk < tile.chunks; chunk += 4) {
    uint32_t key[4], query[4];
    LoadMatrix4(key, keys + tile.At(key_row + lane % 8, chunk + lane / 8));
    LoadMatrix4(query, queries + tile.At(query_row, chunk + lane / 16));
    Mma16816<Bf16>(score, query, key);
    LoadMatrix4(query, queries + tile.At(query_row, chunk + 2 + lane / 16));
    Mma16816<Bf16>(odd, query, key + 2);
  }
  TM_UNROLL
  for (int i = 0; i < 4; ++i) score[i] += odd[i];
}

// What a thread's two rows see: of the sequence's tokens theirs is token[i], and of keys those from begin[i]
// to before end[i] that its mask shows. None where there is no such row.
struct LatentSight {
  int token[2], begin[2], end[2];
};

TM_DEVICE LatentSight SightOfThread(const AttentionRunParams& run, const AttentionItem& item,
                                    const LatentSequence& sequence, int key_begin) {
  const int rows = sequence.tokens * run.group;
  LatentSight sight;
  TM_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int r = item.row_begin + LaneId() / 4 + 8 * i;
    sight.token[i] = r / run.group;
    const int position = sequence.kv_end - sequence.tokens + sight.token[i];
    sight.begin[i] = key_begin;
    sight.end[i] = item.key_end;
    if (sequence.mask == nullptr) {
      sight.begin[i] = Max(key_begin, static_cast<int>(FirstVisible(position, run.window)));
      sight.end[i] = Min(position + 1, item.key_end);
    }
    if (r >= rows) sight.end[i] = 0;
  }
  return sight;
}

// Hides from a thread's rows what they do not see of its keys `key` and key + 1.
TM_DEVICE void HideLatentKeys(const LatentSequence& sequence, const LatentSight& sight, int key,
                              float (&score)[4]) {
  TM_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int own = key + i % 2;
    bool sees = (own >= sight.begin[i / 2]) & (own < sight.end[i / 2]);
    if (sequence.mask != nullptr && sees) {
      const int64_t pair =
          int64_t{sight.token[i / 2]} * (sequence.kv_end - sequence.kv_base) + own - sequence.kv_base;
      sees = (LoadGlobal(sequence.mask + pair / 8) >> (pair % 8) & 1) != 0;
    }
    score[i] = sees ? score[i] : kMinusInfinity;
  }
}

// The softmax so far of a thread's two rows, and its warp's lanes of the weighted values: tile i of 16 lanes
// is the value's tile 4i + warp.
struct LatentRunning {
  float out[kLatentTiles * 2][4] = {};
  float max[2] = {kMinusInfinity, kMinusInfinity};
  float sum[2] = {0.0f, 0.0f};
};

// A step of the softmax: scores of 32 keys become weights. A row is spread over the four lanes of a quad.
TM_DEVICE void WeighLatentKeys(LatentRunning& running, float (&score)[4][4]) {
  TM_UNROLL
  for (int i = 0; i < 2; ++i) {
    float max = running.max[i];
    TM_UNROLL
    for (int n = 0; n < 4; ++n) max = Max(max, Max(score[n][2 * i], score[n][2 * i + 1]));
    max = Max(max, ShuffleXor(max, 1));
    max = Max(max, ShuffleXor(max, 2));
    const float base = max == kMinusInfinity ? 0.0f : max;  // no key seen yet: every weight is 0
    const float shrink = Exp2(running.max[i] - base);
    running.max[i] = max;
    float sum = 0.0f;
    TM_UNROLL
    for (int n = 0; n < 4; ++n) {
      TM_UNROLL
      for (int j = 2 * i; j < 2 * i + 2; ++j) {
        score[n][j] = Exp2(score[n][j] - base);
        sum += score[n][j];
      }
    }
    running.sum[i] = running.sum[i] * shrink + sum;
    TM_UNROLL
    for (int d = 0; d < kLatentTiles * 2; ++d) {
      running.out[d][2 * i] *= shrink;
      running.out[d][2 * i + 1] *= shrink;
    }
  }
}

// out += weights * values, of the warp's lanes.
TM_DEVICE void AddLatentValues(const LatentTile& tile, const std::byte* keys, int value_tiles,
                               const float (&score)[4][4], LatentRunning& running) {
  const int lane = LaneId(), warp = ThreadX() / 32;
  TM_UNROLL
  for (int n = 0; n < kLatentKeys / 16; ++n) {
    const uint32_t weight[4] = {PackPair<Bf16>(score[2 * n][0], score[2 * n][1]),
                                PackPair<Bf16>(score[2 * n][2], score[2 * n][3]),
                                PackPair<Bf16>(score[2 * n + 1][0], score[2 * n + 1][1]),
                                PackPair<Bf16>(score[2 * n + 1][2], score[2 * n + 1][3])};
    const int row = n * 16 + (lane / 8 % 2) * 8 + lane % 8;
    TM_UNROLL
    for (int i = 0; i < kLatentTiles; ++i) {
      const int of_value = kLatentWarps * i + warp;
      if (of_value >= value_tiles) break;
      uint32_t value[4];
      LoadMatrix4Transposed(value, keys + tile.At(row, 2 * of_value + lane / 16));
      Mma16816<Bf16>(running.out[2 * i], weight, value);
      Mma16816<Bf16>(running.out[2 * i + 1], weight, value + 2);
    }
  }
}

// The warp's lanes of the rows' outputs, or where an item is one of several splits of their part of them.
TM_DEVICE void WriteLatentRows(const AttentionRunParams& run, const AttentionItem& item,
                               const LatentSequence& sequence, int kv_head, const LatentRunning& running) {
  const int value_dim = run.kv.format.ValueDim();
  const int lane = LaneId(), warp = ThreadX() / 32;
  TM_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int tile_row = lane / 4 + 8 * i;
    const int r = item.row_begin + tile_row;
    if (r >= sequence.tokens * run.group) continue;
    const float inverse = running.sum[i] > 0.0f ? 1.0f / running.sum[i] : 0.0f;
    const float lse = running.sum[i] > 0.0f ? running.max[i] + Log2(running.sum[i]) : kMinusInfinity;
    const int64_t token = sequence.first_token + r / run.group;
    const int head = kv_head * run.group + r % run.group;
    const int64_t slot = (int64_t{item.partial} * run.kv.format.kv_heads + kv_head) * kLatentRows + tile_row;
    TM_UNROLL
    for (int d = 0; d < kLatentTiles * 2; ++d) {
      const int at = (kLatentWarps * (d / 2) + warp) * 16 + d % 2 * 8 + lane % 4 * 2;
      if (at >= value_dim) break;
      const float first = running.out[d][2 * i] * inverse, second = running.out[d][2 * i + 1] * inverse;
      if (item.partial >= 0) {
        StoreGlobal(run.partial_out + slot * value_dim + at, first);
        StoreGlobal(run.partial_out + slot * value_dim + at + 1, second);
      } else {
        auto* to = static_cast<Bf16*>(run.out) + token * run.out_stride + int64_t{head} * value_dim + at;
        StoreGlobal(reinterpret_cast<uint32_t*>(to), PackPair<Bf16>(first, second));
      }
    }
    if (warp > 0 || lane % 4 > 0) continue;
    if (item.partial >= 0) {
      StoreGlobal(run.partial_lse + slot, lse);
    } else if (run.lse != nullptr) {
      StoreGlobal(run.lse + token * (run.kv.format.kv_heads * run.group) + head, lse);
    }
  }
}

}  // namespace

// Two blocks are what shared memory lets a multiprocessor have of the longest rows.
TM_KERNEL TM_BOUNDS(kLatentThreads, 2) void LatentAttentionKernel(LatentAttentionParams p) {
  AwaitPriorKernels();
  const AttentionRunParams& run = p.run;
  if (BlockX() >= LoadUniform(&run.work->items)) return;
  const AttentionItem item = LoadUniform(run.items + BlockX());
  const int kv_head = BlockY();
  const LatentSequence sequence = SequenceOf(p, item.sequence);
  const int lane = LaneId(), warp = ThreadX() / 32;

  const int rows = sequence.tokens * run.group;
  const int first_position = sequence.kv_end - sequence.tokens;
  const int last_row = Min(item.row_begin + kLatentRows, rows) - 1;
  // Positions of the tile's first and last rows.
  const int tile_first = first_position + item.row_begin / run.group;
  const int tile_last = first_position + last_row / run.group;
  int visible = static_cast<int>(FirstVisible(tile_first, run.window));
  int seen_from = static_cast<int>(FirstVisible(tile_last, run.window));  // by all rows, and to before
  int seen_to = Min(tile_first + 1, item.key_end);
  if (sequence.mask != nullptr) {
    visible = sequence.kv_base;
    seen_from = seen_to = 0;  // of no key is it known
  }
  const int key_begin = Max(item.key_begin, visible);
  const int key_end = item.key_end;

  const LatentTile tile(run.kv.format.head_dim);
  std::byte* const queries = SharedBytes();
  std::byte* const key_tiles = queries + tile.KeysAt();
  auto* const scores = reinterpret_cast<float*>(queries + tile.ScoresAt());
  const auto stage_of = [&](int t) { return key_tiles + t % kLatentStages * (kLatentKeys * tile.row_bytes); };
  // Whole steps in front of the first key that is seen are left out.
  const int first_key = item.key_begin + (key_begin - item.key_begin) / kLatentKeys * kLatentKeys;
  const int steps = key_end > first_key ? (key_end - first_key + kLatentKeys - 1) / kLatentKeys : 0;
  LoadLatentQueries(run, tile, sequence, kv_head, item.row_begin, queries);
  if (steps > 0)
    CopyLatentKeys(run.pages, tile, sequence, kv_head, first_key, key_begin, key_end, stage_of(0));
  CopyCommit();

  const LatentSight sight = SightOfThread(run, item, sequence, key_begin);
  // Where a thread's scores lie, of its first row: a pair of its keys, and all of a row that it weighs.
  float* const score_row = scores + lane / 4 * kLatentScoreStride + lane % 4 * 2;
  LatentRunning running;
  const float scale = run.scale * kAttentionLog2E;
  const int value_tiles = (run.kv.format.ValueDim() + 15) / 16;
  for (int t = 0; t < steps; ++t) {
    if (t + 1 < steps) {
      CopyLatentKeys(run.pages, tile, sequence, kv_head, first_key + (t + 1) * kLatentKeys, key_begin,
                     key_end, stage_of(t + 1));
    }
    CopyCommit();
    CopyWait<1>();  // all but the next keys
    SyncThreads();
    float own[4] = {};
    ScoreLatentKeys(tile, queries, stage_of(t), 8 * warp, own);
    TM_UNROLL
    for (float& of_pair : own) of_pair *= scale;
    // At the edges only: the first steps of the window, the last ones before the rows' own positions.
    const int step_key = first_key + t * kLatentKeys;
    const bool edge = step_key < seen_from || step_key + kLatentKeys > seen_to;
    if (edge) HideLatentKeys(sequence, sight, step_key + 8 * warp + lane % 4 * 2, own);
    TM_UNROLL
    for (int i = 0; i < 2; ++i) {
      StoreShared8(score_row + 8 * i * kLatentScoreStride + 8 * warp,
                   {BitsOf(own[2 * i]), BitsOf(own[2 * i + 1])});
    }
    SyncThreads();
    float score[4][4];
    TM_UNROLL
    for (int n = 0; n < 4; ++n) {
      TM_UNROLL
      for (int i = 0; i < 2; ++i) {
        const Vector8 two = LoadShared8(score_row + 8 * i * kLatentScoreStride + 8 * n);
        score[n][2 * i] = FloatOf(two.word[0]);
        score[n][2 * i + 1] = FloatOf(two.word[1]);
      }
    }
    WeighLatentKeys(running, score);
    AddLatentValues(tile, stage_of(t), value_tiles, score, running);
    SyncThreads();  // keys and scores may be overwritten
  }
  CopyWait<0>();
  TM_UNROLL
  for (int i = 0; i < 2; ++i) {
    running.sum[i] += ShuffleXor(running.sum[i], 1);
    running.sum[i] += ShuffleXor(running.sum[i], 2);
  }
  WriteLatentRows(run, item, sequence, kv_head, running);
  if (item.partial >= 0) {
    FinishPart<Bf16>(run, {run.items + BlockX(), item.sequence, item.partial, kv_head},
                     run.kv.format.ValueDim(), reinterpret_cast<int32_t*>(SharedBytes()),
                     [] { SyncThreads(); });
  }
}

int RunLatentAttention(const LatentAttentionParams& given, void* stream) {
  LatentAttentionParams params = given;
  params.run.pages = DevicePages(given.run.kv);
  if (const int error = AllowSharedBytes<LatentAttentionKernel, LatentSharedBytes(kMostLatentDim)>())
    return error;
  const Dim3 grid{static_cast<unsigned>(params.run.max_items),
                  static_cast<unsigned>(params.run.kv.format.kv_heads)};
  const auto shared = static_cast<size_t>(LatentSharedBytes(params.run.kv.format.head_dim));
  const auto queue = static_cast<Stream>(stream);
  return TM_LAUNCH(LatentAttentionKernel, grid, Dim3{kLatentThreads}, shared, queue, params);
}

}  // namespace tramontane::cuda
